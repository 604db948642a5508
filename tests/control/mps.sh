#!/bin/sh
# Stands in for nvidia-cuda-mps-control: -f is a daemon with a server, anything else talks to it.
# MPS_STUBBORN: the daemon does not quit. MPS_BROKEN: it ends at once.
folder=$CUDA_MPS_PIPE_DIRECTORY
if [ "$1" = -f ]; then
  if [ -n "$MPS_BROKEN" ]; then
    echo "no such GPU" >"$folder/control.log"
    exit 1
  fi
  sleep 1000 &
  server=$!
  : >"$folder/control"
  while [ -e "$folder/control" ]; do sleep 0.05; done
  kill "$server"
  exit 0
fi
[ -e "$folder/control" ] || exit 1
read -r command
if [ "$command" = quit ] && [ -z "$MPS_STUBBORN" ]; then rm "$folder/control"; fi
