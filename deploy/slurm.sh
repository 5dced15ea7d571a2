#!/usr/bin/env bash
# A batch file for Slurm: one task a host, which brings a rank for each of its GPUs, or for each of its cores. `sbatch deploy/slurm.sh run.yaml`.
#
# Two minutes before its time is over the job is warned: dtrain stops with a checkpoint. The next job of the same run goes on from there.
#SBATCH --job-name=dtrain
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@120
#SBATCH --output=%x-%j.log
set -euo pipefail
config=${1:?usage: sbatch deploy/slurm.sh run.yaml}

srun dtrain node -c "$config" name="$SLURM_JOB_NAME" resume=auto
