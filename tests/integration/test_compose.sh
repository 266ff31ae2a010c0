#!/bin/bash
# The compose file is one that docker-compose understands, and every program of the image is started without a shell
# in between that would keep signals from it. Usage: test_compose.sh SOURCE_DIR
set -euo pipefail
cd "$1/deploy/compose"
fail() {
    echo "test_compose: $*" >&2
    exit 1
}

said=$(docker-compose config -q 2>&1) || fail "config: $said"
[[ -z $said ]] || fail "config: $said"
config=$(docker-compose config)
services=$(docker-compose config --services | LC_ALL=C sort | tr '\n' ' ')
[[ $services == "coordinator keys server worker " ]] || fail "services: $services"
grep -q 'condition: service_healthy' <<<"$config" || fail "nobody waits for the coordinator"
moved=$(SHOAL_PORT=7171 docker-compose config)
[[ $moved == *127.0.0.1:7171:7070* ]] || fail "the port is not taken from the environment"

job=$(sed -n 's/^SHOAL_JOB=//p' .env)
[[ -f ../examples/$job ]] || fail "no job $job"
grep -qE '^ENTRYPOINT \["[a-z/-]+"' ../docker/Dockerfile || fail "Dockerfile: ENTRYPOINT is not in exec form"
grep -qE '^USER [a-z]+' ../docker/Dockerfile || fail "Dockerfile: runs as root"
grep -q '^HEALTHCHECK ' ../docker/Dockerfile || fail "Dockerfile: no HEALTHCHECK"
echo "compose in order"
