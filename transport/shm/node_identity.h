#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace isthmus {

// What decides whether two ranks may share memory: equal identities of all fields. Never the host
// name or LOCAL_WORLD_SIZE. Boot id separates machines, the network namespace separates containers
// (and is the scope of the abstract sockets that descriptors travel through), the user separates
// trust.
struct NodeIdentity {
  std::string boot_id;
  std::uint64_t network_namespace = 0;
  std::uint64_t ipc_namespace = 0;
  std::uint32_t user = 0;
  std::string override_id;  // ISTHMUS_NODE_ID
  bool shared_memory = true;

  bool operator==(const NodeIdentity&) const = default;

  static Result<NodeIdentity> probe();

  // Hash for grouping ranks into nodes; equal identities only.
  std::uint64_t hash() const;
};

}  // namespace isthmus
