#!/usr/bin/env bash
# Becomes a launcher that no dead one keeps from starting: `bash jobs/clean_start.sh mpirun -np 2 ...`
#
# Open MPI's mpirun keeps the addresses of its sockets in a folder named after its process id. Where an mpirun was killed
# with signal 9, the next one of the same id finds them and does not start ("The PMIx server's listener thread failed to
# start"). This shell has the id that mpirun will have, so that whatever bears it is a dead one's.
rm -rf "${TMPDIR:-${TEMP:-${TMP:-/tmp}}}/ompi.$$" 2>/dev/null || true
exec "$@"
