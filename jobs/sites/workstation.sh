# shellcheck shell=bash disable=SC2034
# No Slurm: `bash jobs/train_tgn.slurm` runs two ranks on this machine. Ctrl-C or `kill -USR1` writes a checkpoint and
# ends the job; with HPCGNN_REQUEUE=repeat it is started again from there.
activate_venv

REQUEUE=${HPCGNN_REQUEUE:-none}
read -ra LAUNCH <<<"$(shield)"
LAUNCH+=(mpirun -np 2)
open_mpi_options --oversubscribe --bind-to none
