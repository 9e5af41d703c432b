#!/usr/bin/env bash
# run.sh [--for SECONDS] NAME...: the experiments of runs.json with these names, one after the other. Each one trains a
# model, evaluates it and writes OUT/NAME.json. Stopped at any point, the same command goes on from there; what is finished
# is left alone. --for stops by itself when the time is over (allow half a minute for the last checkpoint), leaves what the
# run at hand has as OUT/partial-NAME.json, and passes over runs that fail. @tries, @seeds, @ablations and @added are lists
# of runs.json, most important first: on a machine that is lent for ten minutes at a time,
#     study/run.sh --for 540 @tries
#
#   HOLA   the program            (default: ./hola of this repository)
#   DATA   prepared data          (default: study/data; DATA/all is a directory of hola prepare, DATA/eval as docs/eval.md)
#   OUT    where results go       (default: study/results)
#   WORK   checkpoints, answers   (default: study/scratch; about 600 MB a run of 46m)
#   COMMIT the program's commit   (default: of this repository)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export HOLA=${HOLA:-$here/../hola} DATA=${DATA:-$here/data} OUT=${OUT:-$here/results} WORK=${WORK:-$here/scratch}
exec python3 "$here/run.py" "$@"
