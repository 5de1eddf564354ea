#include "transport/shm/node_identity.h"

#include <cerrno>
#include <fstream>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"
#include "base/hash.h"

namespace isthmus {
namespace {

Result<std::uint64_t> namespace_inode(const char* path) {
  struct stat info {};

  if (::stat(path, &info) != 0) {
    return system_error(Code::kIo, errno, fmt::format("cannot stat {}", path));
  }
  return static_cast<std::uint64_t>(info.st_ino);
}

}  // namespace

Result<NodeIdentity> NodeIdentity::probe() {
  NodeIdentity identity;
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  if (!std::getline(boot, identity.boot_id)) {
    return Error{.code = Code::kIo, .message = "cannot read /proc/sys/kernel/random/boot_id"};
  }
  ISTHMUS_ASSIGN(identity.network_namespace, namespace_inode("/proc/self/ns/net"));
  ISTHMUS_ASSIGN(identity.ipc_namespace, namespace_inode("/proc/self/ns/ipc"));
  identity.user = ::getuid();
  identity.override_id = env().NODE_ID;
  identity.shared_memory = env().SHM;
  return identity;
}

std::uint64_t NodeIdentity::hash() const {
  std::uint64_t hash = hash_bytes(boot_id);
  hash = hash_combine(hash, network_namespace);
  hash = hash_combine(hash, ipc_namespace);
  hash = hash_combine(hash, user);
  return hash_combine(hash, hash_bytes(override_id));
}

}  // namespace isthmus
