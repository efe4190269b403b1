#!/bin/bash
HERE=`pwd`
if [ ! -e "$DATA"".idx" ]; then
  wget https://example.invalid/data.tar.gz
fi

if [ -z "$WORLD_SIZE" ]; then
  export WORLD_SIZE=1
fi
if [ -z "$GPUS_PER_NODE" ]; then
  GPUS_PER_NODE=$(nvidia-smi --list-gpus | wc -l)
fi
ALL_GPUS=$(( $WORLD_SIZE * $GPUS_PER_NODE ))

if [ -z "$PIPELINE" ]; then
  PIPELINE=2
  LAYERS=8
  MICRO=1
  GLOBAL=8
  HIDDEN=8192
  LIMIT=$((2 * $PIPELINE))
fi

ranks="0"
for ((i = 1; i < $ALL_GPUS; i++)); do
    ranks="$ranks $i"
done

options=" \
  --tensor-model-parallel-size ${TP:-2} \
  --pipeline-model-parallel-size $PIPELINE \
  --num-layers $LAYERS \
  --hidden-size $HIDDEN \
  --num-attention-heads 64 \
  --seq-length 4096 \
  --max-position-embeddings 8192 \
  --micro-batch-size $MICRO \
  --global-batch-size $GLOBAL \
  --tokenizer-type GPTSentencePieceTokenizer \
  --tokenizer-model /data/tokenizer.model \
  --untie-embeddings-and-output-weights \
  --sequence-parallel \
  --use-distributed-optimizer \
  --no-overlap-p2p-communication \
  --profile-ranks $ranks "

[ -z "$FP32" ] && options="$options --fp16"

if [ ! -z "$ZERO_BUBBLE" ]; then
  options="$options --enable-zero-bubble \
  --zero-bubble-max-pending-backward $LIMIT"
fi

run="torchrun --nnodes $WORLD_SIZE --nproc_per_node=$GPUS_PER_NODE ${HERE}/pretrain_gpt.py $@ ${options}"
echo $run
eval $run
