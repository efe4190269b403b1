# The form of run_and_time.sh of the same.
: "${USE_DIST_OPTIMIZER:=True}"
: "${EXTRA_ARGS:=$@}"
[ "$INTERLEAVED_PIPELINE" == "0" ] && export INTERLEAVED_PIPELINE=null
if [ "$USE_DIST_OPTIMIZER" = True ]; then
  EXTRA_ARGS+=" optim@model.optim=distributed_fused_adam"
fi
CMD=( 'python' '-u' )
${LOGGER:-} ${CMD[@]} /workspace/llm/megatron_gpt_pretraining_custom.py \
	$EXTRA_ARGS \
	; ret_code=$?
