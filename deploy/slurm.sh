#!/usr/bin/env bash
# A batch file for Slurm: one task a host, which brings a rank for each of its GPUs, or for each of its cores. `sbatch deploy/slurm.sh run.yaml`.
#
# Two minutes before its time is over, or when it has to make room for another job, the job is warned: dtrain stops with a checkpoint, and
# the job goes back into the queue. When it runs again, or another job of the same name and file does, the run goes on from there.
#SBATCH --job-name=dtrain
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail
config=${1:?usage: sbatch deploy/slurm.sh run.yaml}

# A task that was killed, as for want of memory, is started again: the run has gone on without it, and takes it back. Of the first
# host too: what `resume=auto` finds there are the ranks of the others, which have kept the state.
task() {
    # Slurm signals this shell as well. It waits for what dtrain makes of it, and starts nothing after that.
    local life code asked=
    trap 'asked=1' USR1 TERM
    for life in {1..20}; do
        code=0
        dtrain node "$@" || code=$?
        # 130 says: stopped by a signal, with a checkpoint. Before there is a run, a signal just ends it.
        if [ -n "$asked" ] && [ "$code" -gt 128 ]; then return 130; fi
        if [ "$code" -le 128 ] || [ "$code" -eq 130 ]; then return "$code"; fi
        echo "host $SLURM_NODEID: dtrain ended with exit code $code, and is started again ($life of 20)"
    done
    return "$code"
}
export -f task

status=0
srun --kill-on-bad-exit=0 --wait=120 bash -c 'task "$@"' task -c "$config" name="$SLURM_JOB_NAME" resume=auto || status=$?

# Not where somebody has cancelled it.
if [ "$status" -eq 130 ] && [ "$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %T)" = RUNNING ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
