#!/bin/bash
# Sizes of a weak-scaling table; choose one.
SIZE=1.7B

if [ ${SIZE} == "1.7B" ]; then
    TP=1; PP=1; MICRO=16; GLOBAL=512
    LAYERS=24; HIDDEN=2304; HEADS=24
    NNODES=4
    EXTRA="--activations-checkpoint-method uniform "
elif [ ${SIZE} == "3.6B" ]; then
    TP=2; PP=1; MICRO=16; GLOBAL=512
    LAYERS=30; HIDDEN=3072; HEADS=32
    NNODES=8
    EXTRA="--activations-checkpoint-method uniform "
elif [ ${SIZE} == "7.5B" ]; then
    TP=4; PP=1; MICRO=16; GLOBAL=512
    LAYERS=36; HIDDEN=4096; HEADS=32
    NNODES=16
    EXTRA="--activations-checkpoint-method uniform "
elif [ ${SIZE} == "18B" ]; then
    TP=8; PP=1; MICRO=8; GLOBAL=1024
    LAYERS=40; HIDDEN=6144; HEADS=48
    NNODES=32
    EXTRA="--activations-checkpoint-method uniform "
elif [ ${SIZE} == "39B" ]; then
    TP=8; PP=2; MICRO=4; GLOBAL=1536
    LAYERS=48; HIDDEN=8192; HEADS=64
    NNODES=64
    EXTRA="--activations-checkpoint-method uniform "
elif [ ${SIZE} == "76B" ]; then
    TP=8; PP=4; MICRO=2; GLOBAL=1792
    LAYERS=60; HIDDEN=10240; HEADS=80
    NNODES=128
    EXTRA="--activations-checkpoint-method uniform --num-layers-per-virtual-pipeline-stage 5 "
elif [ ${SIZE} == "145B" ]; then
    TP=8; PP=8; MICRO=2; GLOBAL=2304
    LAYERS=80; HIDDEN=12288; HEADS=96
    NNODES=192
    EXTRA="--activations-checkpoint-method uniform --num-layers-per-virtual-pipeline-stage 5 "
elif [ ${SIZE} == "310B" ]; then
    TP=8; PP=16; MICRO=1; GLOBAL=2160
    LAYERS=96; HIDDEN=16384; HEADS=128
    NNODES=240
    EXTRA="--activations-checkpoint-method uniform --num-layers-per-virtual-pipeline-stage 3 "
elif [ ${SIZE} == "530B" ]; then
    TP=8; PP=35; MICRO=1; GLOBAL=2520
    LAYERS=105; HIDDEN=20480; HEADS=128
    NNODES=315
    EXTRA="--activations-checkpoint-method uniform --num-layers-per-virtual-pipeline-stage 1 "
elif [ ${SIZE} == "1T" ]; then
    TP=8; PP=64; MICRO=1; GLOBAL=3072
    LAYERS=128; HIDDEN=25600; HEADS=160
    NNODES=384
    EXTRA="--activations-checkpoint-method uniform "
else
    echo "no such size"
    exit 1
fi

# The arguments themselves are in the other file.
. `pwd`/megatron_table_arguments.sh
