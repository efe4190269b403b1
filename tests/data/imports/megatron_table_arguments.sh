#!/bin/bash
: "${PARTITION:?needed by the queue}"

export ARGUMENTS=" ${EXTRA} \
	--tensor-model-parallel-size ${TP} \
	--pipeline-model-parallel-size ${PP} \
	--micro-batch-size ${MICRO} \
	--global-batch-size ${GLOBAL} \
        --num-layers ${LAYERS} \
        --hidden-size ${HIDDEN} \
        --num-attention-heads ${HEADS} \
	--data-path ${DATA} \
	--vocab-file ${VOCAB} \
        --seq-length 2048 \
        --max-position-embeddings 2048 \
        --fp16 \
	--loss-scale 8192 "

sbatch -p ${PARTITION} --nodes=${NNODES} --export=ARGUMENTS run.sh
