#include "topology/machine.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <memory>
#include <type_traits>

#include <hwloc.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace isthmus {

namespace {

struct TopologyCloser {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};

using HwlocTopology = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, TopologyCloser>;

Result<HwlocTopology> load() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) {
    return system_error(Code::kResource, errno, "hwloc could not create a topology");
  }
  HwlocTopology topology(raw);
  // Only what this process may use: a container's mask would otherwise be taken for the machine.
  if (hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM) != 0 ||
      hwloc_topology_load(raw) != 0) {
    return system_error(Code::kUnsupported, errno, "hwloc could not read this machine's topology");
  }
  return topology;
}

// Cores and hardware threads of the cpu mask.
void count_cores(hwloc_topology_t topology, Machine* machine) {
  hwloc_cpuset_t mask = hwloc_bitmap_alloc();
  if (mask == nullptr) {
    return;
  }
  if (hwloc_get_cpubind(topology, mask, HWLOC_CPUBIND_PROCESS) != 0 ||
      hwloc_bitmap_iszero(mask) != 0) {
    hwloc_bitmap_copy(mask, hwloc_topology_get_allowed_cpuset(topology));
  }
  machine->hardware_threads = std::max(hwloc_bitmap_weight(mask), 1);
  int cores = 0;
  const int core_objects = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
  for (int i = 0; i < core_objects; ++i) {
    const hwloc_obj_t core =
        hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, static_cast<unsigned>(i));
    cores += hwloc_bitmap_intersects(core->cpuset, mask) != 0 ? 1 : 0;
  }
  machine->cores = cores > 0 ? cores : machine->hardware_threads;
  hwloc_bitmap_free(mask);
}

std::size_t cache_bytes(hwloc_topology_t topology, hwloc_obj_type_t type) {
  const hwloc_obj_t cache = hwloc_get_obj_by_type(topology, type, 0);
  return cache == nullptr ? 0 : static_cast<std::size_t>(cache->attr->cache.size);
}

}  // namespace

Result<Machine> Machine::probe() {
  Machine machine;
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) {
    return system_error(Code::kIo, errno, "gethostname failed");
  }
  machine.host_name = name.data();
  // Absent on kernels without procfs: then the id stays empty and matches nobody else's by itself.
  std::ifstream boot_id("/proc/sys/kernel/random/boot_id");
  std::getline(boot_id, machine.boot_id);
  ISTHMUS_ASSIGN(const HwlocTopology topology, load());
  count_cores(topology.get(), &machine);
  machine.numa_nodes = std::max(hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_NUMANODE), 1);
  machine.l2_bytes = cache_bytes(topology.get(), HWLOC_OBJ_L2CACHE);
  machine.l3_bytes = cache_bytes(topology.get(), HWLOC_OBJ_L3CACHE);
  return machine;
}

std::string Machine::to_json() const {
  nlohmann::ordered_json json;
  json["host"] = host_name;
  json["boot_id"] = boot_id;
  json["cores"] = cores;
  json["hardware_threads"] = hardware_threads;
  json["numa_nodes"] = numa_nodes;
  json["l2_bytes"] = l2_bytes;
  json["l3_bytes"] = l3_bytes;
  return json.dump();
}

}  // namespace isthmus
