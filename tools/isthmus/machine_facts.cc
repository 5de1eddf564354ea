#include "tools/isthmus/machine_facts.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"

namespace isthmus {
namespace {

struct FreeAddresses {
  void operator()(ifaddrs* list) const { ::freeifaddrs(list); }
};

std::string address_text(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes = nullptr;
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  if (address->sa_family == AF_INET) {
    std::memcpy(&v4, address, sizeof v4);
    bytes = &v4.sin_addr;
  } else if (address->sa_family == AF_INET6) {
    std::memcpy(&v6, address, sizeof v6);
    bytes = &v6.sin6_addr;
  }
  if (bytes == nullptr || ::inet_ntop(address->sa_family, bytes, text.data(),
                                      static_cast<socklen_t>(text.size())) == nullptr) {
    return "";
  }
  return text.data();
}

// A number of a network interface, where the kernel knows it: it has -1 or an error else.
std::optional<std::uint64_t> interface_number(const std::string& name, const char* what) {
  const std::optional<std::string> text =
      first_line(fmt::format("/sys/class/net/{}/{}", name, what));
  std::uint64_t value = 0;
  if (!text ||
      std::from_chars(text->data(), text->data() + text->size(), value).ec != std::errc()) {
    return std::nullopt;
  }
  return value;
}

// What the child of try_cross_process_copy() does; its exit code is the errno.
int copy_from_parent(pid_t parent, std::uint64_t* word, std::uint64_t expected) {
  std::uint64_t got = 0;
  iovec here{.iov_base = &got, .iov_len = sizeof got};
  iovec there{.iov_base = word, .iov_len = sizeof *word};
  const long copied = ::syscall(SYS_process_vm_readv, parent, &here, 1, &there, 1, 0);
  if (copied < 0) {
    return errno;
  }
  return copied == sizeof got && got == expected ? 0 : EIO;
}

}  // namespace

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) {
    return std::nullopt;
  }
  return line;
}

std::optional<FileSystemSpace> space_of(const std::string& path) {
  struct statvfs info {};

  if (::statvfs(path.c_str(), &info) != 0) {
    return std::nullopt;
  }
  return FileSystemSpace{.bytes = std::uint64_t{info.f_blocks} * info.f_frsize,
                         .free_bytes = std::uint64_t{info.f_bavail} * info.f_frsize};
}

std::optional<Limit> limit_of(int resource) {
  rlimit limit{};
  // The C++ declaration takes an enumeration, the kernel's number is what callers have.
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) {
    return std::nullopt;
  }
  return Limit{.soft = limit.rlim_cur, .hard = limit.rlim_max};
}

std::string limit_text(std::uint64_t value) {
  return value == RLIM_INFINITY ? "unlimited" : fmt::format("{}", value);
}

std::optional<std::uint64_t> meminfo(const std::string& field) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field + ":")) {
      std::istringstream words(line.substr(field.size() + 1));
      std::uint64_t value = 0;
      if (words >> value) {
        return value;
      }
    }
  }
  return std::nullopt;
}

std::vector<Interface> interfaces() {
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) {
    return {};
  }
  const std::unique_ptr<ifaddrs, FreeAddresses> list(raw);
  std::vector<Interface> out;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    const std::string address = entry->ifa_addr == nullptr ? "" : address_text(entry->ifa_addr);
    if (address.empty()) {
      continue;
    }
    Interface* found = nullptr;
    for (Interface& known : out) {
      found = known.name == entry->ifa_name ? &known : found;
    }
    if (found == nullptr) {
      out.push_back({.name = entry->ifa_name,
                     .up = (entry->ifa_flags & IFF_UP) != 0,
                     .loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0,
                     .addresses = {},
                     .speed_mbit = interface_number(entry->ifa_name, "speed"),
                     .mtu = interface_number(entry->ifa_name, "mtu")});
      found = &out.back();
    }
    found->addresses.push_back(address);
  }
  return out;
}

int try_memfd() {
  const Fd fd(::memfd_create("isthmus-doctor", MFD_CLOEXEC));
  if (!fd.valid() || ::ftruncate(fd.get(), 1 << 16) != 0) {
    return errno;
  }
  void* memory = ::mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) {
    return errno;
  }
  ::munmap(memory, 1 << 16);
  return 0;
}

int try_pidfd() {
  const Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  return fd.valid() ? 0 : errno;
}

int try_eventfd() {
  const Fd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return fd.valid() ? 0 : errno;
}

int try_passing_descriptors() {
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    return errno;
  }
  const Fd here(pair[0]);
  const Fd there(pair[1]);
  char byte = 'x';
  iovec data{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int passed = there.get();
  std::memcpy(CMSG_DATA(header), &passed, sizeof passed);
  if (::sendmsg(here.get(), &message, MSG_NOSIGNAL) != 1) {
    return errno;
  }
  control.fill(std::byte{0});
  message.msg_controllen = control.size();
  if (::recvmsg(there.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1) {
    return errno;
  }
  header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) {
    return EPROTO;
  }
  int received = -1;
  std::memcpy(&received, CMSG_DATA(header), sizeof received);
  const Fd owner(received);
  return 0;
}

int try_named_shared_memory() {
  const Fd fd(::open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  return fd.valid() ? 0 : errno;
}

int try_sealing() {
  const Fd fd(::memfd_create("isthmus-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  return fd.valid() && ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) == 0 ? 0 : errno;
}

int try_cross_process_copy() {
  constexpr std::uint64_t kExpected = 0x697374686d757321;
  std::uint64_t word = kExpected;  // the child writes its own copy, and reads this one
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) {
    return errno;
  }
  if (child == 0) {
    word = 0;
    ::_exit(copy_from_parent(parent, &word, kExpected));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) != child) {
    if (errno != EINTR) {
      return errno;
    }
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
}

}  // namespace isthmus
