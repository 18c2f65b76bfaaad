#!/usr/bin/env bash
# From a shell: a session that spans several commands, and a lock around a single one.
# A refusal is exit status 1, so `if` and `||` work as with any command.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export INTERLOCK_STORE=$folder/store.db
interlock init

# One session for all commands below: its grants outlive each command, and every command renews it.
eval "$(interlock agent join --agent ada)"
interlock lock acquire merge
if INTERLOCK_SESSION='' interlock lock acquire merge --agent bob; then
  echo "two holders" >&2
  exit 1
fi
interlock lock release merge
interlock agent leave
unset INTERLOCK_SESSION

# One command under a lock: the lock is renewed while it runs and released when it ends; a lost lock ends the command.
# It finds the token in INTERLOCK_TOKEN, to pass to the system that the lock protects.
output=$(interlock lock run merge --agent bob --wait 5s -- \
  sh -c 'echo "$INTERLOCK_AGENT deploys with token $INTERLOCK_TOKEN"')
echo "$output"
[[ $output == "bob deploys with token "* ]]
