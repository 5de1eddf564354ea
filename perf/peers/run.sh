#!/usr/bin/env bash
# run.sh [-n "2 4 8"] [-l NODES] [--rounds N] [-o results.csv] PEER... [-- bench options]
#
#   run.sh -n 2 --rounds 5 isthmus impi ompi4 -- --ops all_reduce --touch 1
#
# Runs the peers in turn (A B C, A B C, ...), N rounds of it, under a lock, and appends CSV.
# Peers: isthmus, gloo, ompi4 ompi5 (ompi[45]-han -tuned), mpich4 mpich5, impi, impi-yield (its
#   ranks hand the processor on), oneccl,
#   deepspeed-shm (a ds_shm.py with all_reduce), bare (the limits' oracle, options in BENCH_BARE),
#   torch:BACKEND:MODULE (a torch.distributed backend that MODULE's import registers); torch:fake:os
#   is torch's group that moves nothing, the floor under any backend.
# Variants by environment and BENCH_TAG, which is added to the label:
#   OMPI_MCA_coll_sm_priority=100 BENCH_TAG=-sm run.sh ompi4
# -l: on the first NODES nodes of the network lab that is up, ranks dealt out in blocks.
#
# BENCH_BIN      the folder that setup.sh filled; bench_isthmus and oracle may lie there too
# BENCH_ISTHMUS  our program (default BENCH_BIN/bench_isthmus)
# BENCH_PROBE    the limits' c2c (default BENCH_BIN/c2c, if there): its line precedes each peer's
#                rows, for the distance of a virtual machine's processors changes while one measures
# BENCH_PYTHON   a python with torch
# BENCH_LOCK     a lock file held for each run
# BENCH_SCHED    what root's ranks run under: "chrt -f 1" on a machine that others use, too. Default
#                nice -20, but for gloo's ranks, which sleep in the kernel and would wait out another
#                task's time slice at each wake-up, SCHED_FIFO. Peers that spin and outnumber the
#                processors run at nice -20 whatever it says: under FIFO they would hold them all.
# BENCH_TIMEOUT  seconds a run may take (150)
# NETLAB         the lab's command, for -l
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=${BENCH_BIN:-$here/build}
ours=${BENCH_ISTHMUS:-$bin/bench_isthmus}
probe=${BENCH_PROBE-$bin/c2c}
py=${BENCH_PYTHON:-python3}
lock=${BENCH_LOCK:-${TMPDIR:-/tmp}/isthmus-bench.lock}
netlab=${NETLAB:-netlab}
nodes=0 rounds=1 ranks="2 4 8" out=/dev/stdout peers=() opts=()
while (($#)); do
    case $1 in
        -n) ranks=$2; shift 2 ;;
        -l) nodes=$2; shift 2 ;;
        -o) out=$2; shift 2 ;;
        --rounds) rounds=$2; shift 2 ;;
        --) shift; opts=("$@"); break ;;
        -*) echo "run.sh: no option $1" >&2; exit 2 ;;
        *) peers+=("$1"); shift ;;
    esac
done
if ((nodes)) && ! command -v "$netlab" >/dev/null; then
    echo "run.sh: -l needs the network lab's command in NETLAB" >&2
    exit 2
fi

limit=(timeout -k 5 "${BENCH_TIMEOUT:-150}")
run=("${limit[@]}")
# Not across the lab's nodes: the kernel thread that forwards packets would starve.
alone=$([[ $(id -u) == 0 && $nodes == 0 ]] && echo 1 || echo 0)
((alone)) && read -ra sched <<<"${BENCH_SCHED:-nice -n -20}" && run=("${sched[@]}" "${limit[@]}")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
export I_MPI_ROOT=$bin/intel FI_PROVIDER_PATH=$bin/intel/lib CCL_ROOT=$bin/intel

spawn() { # PROGRAM...: P copies with RANK, WORLD_SIZE and MASTER_* set; %r: the rank
    local r pids=() at=() each=$P
    export WORLD_SIZE=$P MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000))
    if ((nodes)); then
        each=$((P / nodes))
        export GLOO_SOCKET_IFNAME=rail0 MASTER_ADDR=10.70.0.1
    fi
    export LOCAL_WORLD_SIZE=$each CCL_LOCAL_SIZE=$each
    for ((r = 0; r < P; r++)); do
        ((nodes)) && at=("$netlab" exec $((r / each)))
        RANK=$r LOCAL_RANK=$((r % each)) CCL_LOCAL_RANK=$((r % each)) \
            "${run[@]}" "${at[@]}" "${@//%r/$r}" &
        pids+=($!)
    done
    for r in "${pids[@]}"; do
        wait "$r" || echo "run.sh: $label: a rank failed ($?)" >&2
    done
}

ompi() { # 4|5 MCA...
    local version=$1 go=mpirun.openmpi oob=oob_tcp_if_include at=() where=()
    shift
    [[ $version == 5 ]] && go=$bin/ompi5/bin/mpirun oob=prte_if_include
    if ((nodes)); then
        local hosts
        hosts=$("$netlab" hosts | head -n "$nodes" | sed "s/$/:$((P / nodes))/" | paste -sd,)
        at=("$netlab" head)
        where=(--host "$hosts" --mca plm_rsh_agent "$("$netlab" agent)"
            --mca btl_tcp_if_include 10.70.0.0/24 --mca "$oob" 10.70.0.0/24)
    fi
    "${run[@]}" "${at[@]}" "$go" -np "$P" "${where[@]}" --oversubscribe --bind-to none \
        "$@" "$bin/bench_ompi$version" --label "$label" "${opts[@]}"
}

hydra() { # LAUNCHER PROGRAM
    local at=() where=()
    if ((nodes)); then
        at=("$netlab" head)
        where=(-launcher ssh -launcher-exec "$("$netlab" agent)" -iface br0 -ppn $((P / nodes))
            -hosts "$("$netlab" hosts | head -n "$nodes" | paste -sd,)")
    fi
    "${run[@]}" "${at[@]}" "$1" "${where[@]}" -n "$P" "$2" --label "$label" "${opts[@]}"
}

oneccl() {
    local kvs
    kvs=$(mktemp -u)
    export CCL_ATL_TRANSPORT=ofi CCL_PROCESS_LAUNCHER=none CCL_LOG_LEVEL=error
    export CCL_YIELD=${CCL_YIELD:-sched_yield} CCL_WORKER_OFFLOAD=${CCL_WORKER_OFFLOAD:-0}
    ((nodes)) && export CCL_KVS_IFACE=rail0 FI_PROVIDER=tcp FI_TCP_IFACE=rail0
    spawn "$bin/bench_ccl" --rank %r --size "$P" --kvs "$kvs" --label "$label" "${opts[@]}"
    rm -f "$kvs"
}

spins() { # PEER: its ranks never hand the processor on
    case $1 in
        impi* | mpich* | ompi5* | oneccl | deepspeed-shm) ((P > $(nproc))) ;;
        *) return 1 ;;
    esac
}

impi() {
    export I_MPI_FABRICS=shm I_MPI_PIN=0 FI_PROVIDER=tcp FI_TCP_IFACE=rail0
    ((nodes)) && I_MPI_FABRICS=shm:ofi
    hydra "$bin/intel/bin/mpiexec.hydra" "$bin/bench_impi"
}

torch_peer() { # torch:BACKEND:MODULE
    local backend module
    IFS=: read -r _ backend module <<<"$1"
    label=torch-$backend${BENCH_TAG:-}
    spawn "$py" "$here/bench_torch.py" --label "$label" --backend "$backend" \
        --import "$module" "${opts[@]}"
}

gloo() {
    ((alone)) && local run=(chrt -f 1 "${limit[@]}")
    GLOO_SOCKET_IFNAME=lo spawn "$py" "$here/bench_torch.py" --label "$label" "${opts[@]}"
}

one() { # PEER
    local label=$1${BENCH_TAG:-}
    ((alone)) && spins "$1" && local run=(nice -n -20 "${limit[@]}")
    case $1 in
        isthmus) spawn "$ours" --label "$label" "${opts[@]}" ;;
        gloo) gloo ;;
        deepspeed-shm)
            OMP_NUM_THREADS=1 PYTHONPATH=$bin spawn "$py" "$here/bench_torch.py" \
                --label "$label" --import ds_shm --ops all_reduce "${opts[@]}" ;;
        bare) "${run[@]}" "$bin/oracle" --ranks "$P" ${BENCH_BARE:-} ;;
        torch:*) torch_peer "$1" ;;
        ompi[45]) ompi "${1#ompi}" --mca pml ob1 ;;
        ompi[45]-han) ompi "${1:4:1}" --mca pml ob1 --mca coll_han_priority 100 ;;
        ompi[45]-tuned) ompi "${1:4:1}" --mca pml ob1 --mca coll '^han' ;;
        mpich4) UCX_LOG_LEVEL=error hydra mpirun.mpich "$bin/bench_mpich4" ;;
        mpich5) UCX_LOG_LEVEL=error hydra "$bin/mpich5/bin/mpiexec" "$bin/bench_mpich5" ;;
        impi) impi ;;
        impi-yield) I_MPI_THREAD_YIELD=2 impi ;;
        oneccl) oneccl ;;
        *) echo "run.sh: no peer $1" >&2; return 1 ;;
    esac
}

if [[ $out != /dev/stdout && ! -s $out ]]; then
    echo "peer,op,ranks,bytes,us,us_min,us_max,iters,reps" >"$out"
fi
status=0
for P in $ranks; do
    for ((round = 1; round <= rounds; round++)); do
        for peer in "${peers[@]}"; do
            (
                flock 9
                if [[ -n $probe && -x ${probe##* } ]]; then
                    ((alone)) && chrt=(chrt -f 1) || chrt=()
                    echo "# $(date +%T) round $round $(timeout 30 "${chrt[@]}" $probe)" >>"$out"
                fi
                one "$peer" 9>&- >>"$out"
            ) 9>"$lock" || status=1
        done
    done
done
exit $status
