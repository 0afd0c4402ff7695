# shellcheck shell=bash disable=SC2034
# PBS (OpenPBS, PBS Professional), with the mpirun of Open MPI, MPICH or Intel MPI on the hosts that PBS lists:
#
#   qsub -l select=2:ncpus=2:mpiprocs=2 -l walltime=01:00:00 -- /bin/bash "$PWD/jobs/train_tgn.slurm" --data.path parts/
#
# Before the walltime ends the run leaves with a checkpoint. PBS lets no user put a job back into the queue: chain jobs
# of one HPCGNN_RUN; each resumes the run where the one before left it:
#
#   first=$(qsub -v HPCGNN_RUN=wiki ...); qsub -v HPCGNN_RUN=wiki -W depend=afterany:"$first" ...
#
# `-J 0-2` trains seeds 0, 1 and 2.
activate_venv

REQUEUE=${HPCGNN_REQUEUE:-none}
JOB_ID=${PBS_JOBID%%.*} # of an element of an array "12[3]"
JOB_ID=${JOB_ID%%\[*}
ARRAY_INDEX=${PBS_ARRAY_INDEX:-}

limit=$(qstat -f "$PBS_JOBID" 2>/dev/null | sed -n 's/^ *Resource_List.walltime = //p') || true
if [[ $limit =~ ^([0-9]+):([0-9]+):([0-9]+)$ ]]; then
    limit=$((10#${BASH_REMATCH[1]} * 3600 + 10#${BASH_REMATCH[2]} * 60 + 10#${BASH_REMATCH[3]}))
    export HPCGNN_JOB_END=$(($(date +%s) - SECONDS + limit))
fi

read -ra LAUNCH <<<"$(shield)"
LAUNCH+=(mpirun -np "$(wc -l <"$PBS_NODEFILE")" -hostfile "$PBS_NODEFILE")
open_mpi_options
