#!/bin/bash
# One engine over the nodes of a job: sbatch slurm.sh. The environment with the engine and
# engine-ray is active, and ENGINE_API_KEY is set; both go to every node.
#SBATCH --job-name=engine
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
set -euo pipefail

model=${MODEL:-Qwen/Qwen3-0.6B}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$head:6379
on_head=(srun --overlap --nodes=1 --ntasks=1 --nodelist="$head")

"${on_head[@]}" ray start --head --port=6379 --num-cpus="$SLURM_CPUS_PER_TASK" --block &
until "${on_head[@]}" ray status --address="$address" > /dev/null 2>&1; do sleep 1; done
if ((SLURM_NNODES > 1)); then
  srun --overlap --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude="$head" \
    ray start --address="$address" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
fi

"${on_head[@]}" engine serve "$model" --host 0.0.0.0 --port 8000 \
  --tensor-parallel-size "$SLURM_NNODES" --num-threads "$SLURM_CPUS_PER_TASK" \
  --distributed-executor-backend ray --ray-address "$address" \
  --ray-placement-strategy STRICT_SPREAD --ray-resources.CPU "$SLURM_CPUS_PER_TASK" \
  --shutdown-timeout 90 &
server=$!
trap 'kill -TERM $server; wait $server' TERM # srun passes the signal on; the server drains
wait $server
