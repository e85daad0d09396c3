#!/bin/sh
# What does a large model behind an endpoint score on your tasks? Train a small one, compare the two, export the result.
#   OPENAI_API_KEY=… sh run.sh https://api.openai.com/v1 gpt-5
set -eu
mcprl eval recipe.yaml --endpoint "$1" --model "$2" --price 1.25 10 --max-usd 1 --out outputs/large
mcprl sft recipe.yaml        # then mcprl train, see docs/guides/from-sft-to-rl.md
mcprl eval recipe.yaml --adapter outputs/small-sft/adapter --against outputs/large --out outputs/compared
mcprl export outputs/small-sft --eval outputs/compared --base tiny/random --license apache-2.0 --out outputs/export
# hf upload ORG/NAME outputs/export
