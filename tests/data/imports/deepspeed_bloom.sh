#!/bin/bash
#SBATCH --nodes=48
NNODES=48
GPUS_PER_NODE=8
PP=12
TP=4
MICRO=2
GLOBAL=2048
CONFIG="./ds_config.$SLURM_JOBID.json"

cat <<EOT > $CONFIG
{
  "train_micro_batch_size_per_gpu": $MICRO,
  "train_batch_size": $GLOBAL,
  "zero_optimization": { "stage": 1 },
  "bf16": { "enabled": true }
}
EOT

OPTIONS=" \
    --pp-partition-method 'type:transformer|embedding' \
    --num-layers 70 \
    --hidden-size 14336 \
    --num-attention-heads 112 \
    --seq-length 2048 \
    --micro-batch-size $MICRO \
    --global-batch-size $GLOBAL \
    --position-embedding-type alibi \
    --tokenizer-type PretrainedFromHF \
    --checkpoint-activations \
    --bf16 \
    "

LAUNCHER="python -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"
CMD="pretrain_gpt.py \
    --tensor-model-parallel-size $TP \
    --pipeline-model-parallel-size $PP \
    $OPTIONS \
    --deepspeed --deepspeed_config ${CONFIG} --zero-stage 1 --deepspeed-activation-checkpointing"
srun bash -c "$LAUNCHER --node_rank \$SLURM_PROCID $CMD" 2>&1 | tee -a log.txt
