#!/bin/bash
# A 175-billion-parameter model; arguments in arrays, one to a line.
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NNODES=${NNODES:-1}  # the cluster's size goes here
WORLD=$((GPUS_PER_NODE * NNODES))
VOCAB=$1/vocab.json

LAUNCH=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes "$NNODES"
)

MODEL=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048   # tokens
    --max-position-embeddings 2048
    --attention-backend auto # or flash
)

TRAINING=(
    --micro-batch-size 1
    --global-batch-size 1536
    --rampup-batch-size 16 16 5859375
    --train-iters 500000
    --bf16
)

PARALLEL=(
	--tensor-model-parallel-size 8
	--pipeline-model-parallel-size 16
)

torchrun ${LAUNCH[@]} pretrain_gpt.py \
    "${MODEL[@]}" \
    "${TRAINING[@]}" \
    "${PARALLEL[@]}" \
    --vocab-file $VOCAB --data-path "$2" \
    2>&1 | tee run.log
