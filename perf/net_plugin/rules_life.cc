#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "perf/net_plugin/rules.h"

namespace isthmus::net_plugin {
namespace {

constexpr std::int64_t kAtOnceNs = 1'000'000'000;
constexpr std::int64_t kDeathNs = 3'000'000'000;

std::vector<int> open_descriptors() {
  std::vector<int> out;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != ::dirfd(folder)) {
      out.push_back(fd);
    }
  }
  ::closedir(folder);
  return out;
}

// Where this process listens: TCP ports.
std::set<in_port_t> own_ports() {
  std::set<in_port_t> out;
  for (const int fd : open_descriptors()) {
    int listening = 0;
    socklen_t length = sizeof(listening);
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) != 0 || listening == 0) {
      continue;
    }
    sockaddr_storage address = {};
    length = sizeof(address);
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
    if (address.ss_family == AF_INET) {
      out.insert(reinterpret_cast<const sockaddr_in&>(address).sin_port);
    } else if (address.ss_family == AF_INET6) {
      out.insert(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
    }
  }
  return out;
}

Fd stranger(in_port_t port) {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = port;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int under_way =
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  static_cast<void>(under_way);  // which is enough: a plug-in may hang up as well
  return socket;
}

// One call of connect or accept, timed; what is wrong.
std::string call_once(NetPlugin& plugin, void* listening, void* handle, bool connects,
                      void** comm) {
  *comm = handle;  // what a plug-in must overwrite
  const std::int64_t begin = monotonic_ns();
  const int result = connects ? plugin.connect(0, handle, comm) : plugin.accept(listening, comm);
  const char* const call = connects ? "connect" : "accept";
  if (result != 0) {
    return failed(plugin, call, result).message;
  }
  if (*comm == handle) {
    return fmt::format("{} did not write its comm", call);
  }
  return monotonic_ns() - begin > kAtOnceNs ? fmt::format("{} took more than a second", call) : "";
}

// connect() and accept() in turn; what is wrong.
std::string join_slowly(NetPlugin& plugin, void* listening, void* handle, void** send,
                        void** recv) {
  const Deadline deadline = Deadline::after_ms(Link::kJoinLimitMs);
  while (*send == nullptr || *recv == nullptr) {
    std::string wrong;
    if (*send == nullptr) {
      wrong = call_once(plugin, listening, handle, true, send);
    }
    if (wrong.empty() && *recv == nullptr) {
      wrong = call_once(plugin, listening, handle, false, recv);
    }
    if (!wrong.empty()) {
      return wrong;
    }
    if (deadline.passed(monotonic_ns())) {
      return fmt::format("no connection within {} s", Link::kJoinLimitMs / 1000);
    }
  }
  return "";
}

Result<std::unique_ptr<NetPlugin>> started(const std::string& path, int version) {
  Result<std::unique_ptr<NetPlugin>> plugin = NetPlugin::load(path, version);
  if (plugin.ok()) {
    const int result = (*plugin)->init();
    if (result != 0) {
      return failed(**plugin, "init", result);
    }
  }
  return plugin;
}

struct Listening {
  void* comm = nullptr;
  std::array<std::byte, kHandleBytes> handle{};
};

// So many connections of one listening comm, each of which carries a message.
std::string join_times(NetPlugin& plugin, int times) {
  Listening listening;
  const int result = plugin.listen(0, listening.handle.data(), &listening.comm);
  if (result != 0 || listening.comm == nullptr) {
    return failed(plugin, "listen", result).message;
  }
  std::string wrong;
  for (int i = 0; i < times && wrong.empty(); ++i) {
    void* send = nullptr;
    void* recv = nullptr;
    wrong = join_slowly(plugin, listening.comm, listening.handle.data(), &send, &recv);
    if (wrong.empty()) {
      plugin.close_send(send);
      plugin.close_recv(recv);
    }
  }
  plugin.close_listen(listening.comm);
  return wrong;
}

// The peer of names_a_dead_peer(): receives nothing, until it is killed.
[[noreturn]] void be_the_peer(const std::string& path, int version, Fd socket) {
  Channel channel(std::move(socket));
  Result<std::unique_ptr<NetPlugin>> plugin = started(path, version);
  if (!plugin.ok()) {
    ::_exit(1);
  }
  const Result<Link> link = Link::with_peer(**plugin, channel, 0);
  if (!link.ok() || !channel.meet().ok()) {
    ::_exit(1);
  }
  for (;;) {
    ::pause();
  }
}

// Until a test of either request fails; what is wrong.
std::string wait_for_death(Link& link, const std::vector<void*>& requests) {
  const std::int64_t begin = monotonic_ns();
  while (monotonic_ns() - begin < 2 * kDeathNs) {
    for (void* const request : requests) {
      int done = -1;
      int bytes = 0;
      const int result = link.plugin().test(request, &done, &bytes);
      if (result != 0) {
        constexpr int kRemoteError = 6;
        return result == kRemoteError
                   ? ""
                   : fmt::format("the error is '{}', expected 'remote error'", result_name(result));
      }
      if (done > 0) {
        return "a request that the dead peer never answered is done";
      }
    }
    if (monotonic_ns() - begin > kDeathNs) {
      return "no error within 3 s of the peer's death";
    }
  }
  return "no error";
}

}  // namespace

std::string joins_in_turn(const std::string& path, int version) {
  const Result<std::unique_ptr<NetPlugin>> plugin = started(path, version);
  return plugin.ok() ? join_times(**plugin, 1) : plugin.error().message;
}

std::string listens_again(const std::string& path, int version) {
  const Result<std::unique_ptr<NetPlugin>> plugin = started(path, version);
  if (!plugin.ok()) {
    return plugin.error().message;
  }
  for (int i = 0; i < 20; ++i) {
    Listening unused;
    int result = (*plugin)->listen(0, unused.handle.data(), &unused.comm);
    if (result == 0) {
      result = (*plugin)->close_listen(unused.comm);
    }
    if (result != 0) {
      return failed(**plugin, "listen and closeListen without accept", result).message;
    }
  }
  return join_times(**plugin, 3);
}

std::string drops_strangers(const std::string& path, int version) {
  const Result<std::unique_ptr<NetPlugin>> plugin = started(path, version);
  if (!plugin.ok()) {
    return plugin.error().message;
  }
  Listening listening;
  const int result = (*plugin)->listen(0, listening.handle.data(), &listening.comm);
  if (result != 0) {
    return failed(**plugin, "listen", result).message;
  }
  const std::set<in_port_t> ports = own_ports();
  if (ports.empty()) {
    return "skip: the plug-in listens at no TCP port of this process";
  }
  std::vector<Fd> strangers;
  for (const in_port_t port : ports) {
    for (int i = 0; i < 3; ++i) {
      strangers.push_back(stranger(port));
    }
    constexpr char kJunk[] = "GET / HTTP/1.0\r\n\r\n";
    const Fd& talks = strangers.back();
    const ssize_t sent = ::send(talks.get(), kJunk, sizeof(kJunk), MSG_NOSIGNAL);
    static_cast<void>(sent);  // a plug-in may have hung up
  }
  void* send = nullptr;
  void* recv = nullptr;
  std::string wrong = join_slowly(**plugin, listening.comm, listening.handle.data(), &send, &recv);
  if (!wrong.empty()) {
    return "with strangers at the port: " + wrong;
  }
  (*plugin)->close_send(send);
  (*plugin)->close_recv(recv);
  (*plugin)->close_listen(listening.comm);
  return "";
}

std::string is_quiet(const std::string& path, int version) {
  const Fd file(::open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file.valid() || ::dup2(file.get(), STDOUT_FILENO) < 0) {
    return fmt::format("stdout could not be watched: {}", std::strerror(errno));
  }
  const std::string wrong = with_link(
      path, version, [](NetPlugin&, Link& link) { return pass_message(link, 1000, 1000, 1); });
  const off_t printed = ::lseek(file.get(), 0, SEEK_END);
  return wrong.empty() && printed > 0 ? fmt::format("{} B were printed to stdout", printed) : wrong;
}

std::string closes_descriptors(const std::string& path, int version) {
  const std::vector<int> before = open_descriptors();
  return with_link(path, version, [&](NetPlugin&, Link&) -> std::string {
    const std::set<int> known(before.begin(), before.end());
    for (const int fd : open_descriptors()) {
      if (known.count(fd) == 0 && (::fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0) {
        return fmt::format("descriptor {} stays open on exec", fd);
      }
    }
    return "";
  });
}

std::string states_properties(const std::string& path, int version) {
  return with_link(path, version, [](NetPlugin& plugin, Link&) -> std::string {
    int count = 0;
    plugin.devices(&count);
    for (int device = 0; device < count; ++device) {
      Properties found;
      const int result = plugin.properties(device, &found);
      if (result != 0) {
        return failed(plugin, "getProperties", result).message;
      }
      if (found.name == nullptr || found.name[0] == '\0') {
        return fmt::format("device {} has no name", device);
      }
      if ((found.pointers & kPointerHost) == 0) {
        return fmt::format("device {} does not take host memory", device);
      }
      if (found.speed_mbit <= 0) {
        return fmt::format("device {} has speed {}: NCCL takes 10 Gbit/s then", device,
                           found.speed_mbit);
      }
      if (found.max_comms <= 0 || found.max_recvs <= 0) {
        return fmt::format("device {}: {} comms, {} receives in a group", device, found.max_comms,
                           found.max_recvs);
      }
      constexpr std::size_t kMost = std::size_t{1} << 40;
      if (found.max_p2p_bytes == 0 || found.max_p2p_bytes > kMost) {
        return fmt::format("device {}: maxP2pBytes is {}, expected 1 to 2^40", device,
                           found.max_p2p_bytes);
      }
    }
    return "";
  });
}

std::string starts_again(const std::string& path, int version) {
  for (int i = 0; i < 3; ++i) {  // loaded, used, ended and unloaded
    const std::string wrong = with_link(
        path, version, [](NetPlugin&, Link& link) { return pass_message(link, 5000, 5000, 1); });
    if (!wrong.empty()) {
      return fmt::format("start {}: {}", i + 1, wrong);
    }
  }
  return "";
}

std::string survives_a_fork(const std::string& path, int version) {
  return with_link(path, version, [](NetPlugin&, Link& link) -> std::string {
    for (std::size_t i = 0; i < 3; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        std::exit(0);  // as a worker that ends: destructors run
      }
      const std::string wrong = pass_message(link, 100'000, 100'000, i);
      int status = 0;
      ::waitpid(child, &status, 0);
      if (!wrong.empty() || status != 0) {
        return wrong.empty() ? fmt::format("the child ended with {}", status) : wrong;
      }
    }
    return pass_message(link, 100'000, 100'000, 9);
  });
}

std::string names_a_dead_peer(const std::string& path, int version) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return fmt::format("no channel to the peer: {}", std::strerror(errno));
  }
  Fd mine(ends[0]);
  Fd theirs(ends[1]);
  const pid_t peer = ::fork();
  if (peer == 0) {
    mine.reset();
    be_the_peer(path, version, std::move(theirs));
  }
  theirs.reset();
  Channel channel(std::move(mine));
  const Result<std::unique_ptr<NetPlugin>> plugin = started(path, version);
  if (!plugin.ok()) {
    return plugin.error().message;
  }
  Result<Link> link = Link::with_peer(**plugin, channel, 0);
  if (!link.ok()) {
    return link.error().message;
  }
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  Result<Registered> memory = Registered::make(*link, kBytes);
  if (!memory.ok() || !channel.meet().ok()) {
    return "the peer did not come";
  }
  const Result<void*> recv = link->recv(memory->data(), 64, memory->to_recv());
  const Result<void*> send = link->send(memory->data(), kBytes, memory->to_send());
  ::kill(peer, SIGKILL);
  ::waitpid(peer, nullptr, 0);
  if (!recv.ok() || !send.ok()) {
    return "";  // the death was quicker than the post, which said so
  }
  for (void* const request : {*recv, *send}) {
    const std::string wrong = wait_for_death(*link, {request});
    if (!wrong.empty()) {
      return fmt::format("{}: {}", request == *recv ? "receive" : "send", wrong);
    }
  }
  return "";
}

std::string closes_in_flight(const std::string& path, int version) {
  return with_link(path, version, [](NetPlugin& plugin, Link& link) -> std::string {
    constexpr std::size_t kBytes = std::size_t{8} << 20;
    // Freed after the comms are closed, as NCCL does: close must stop all use of it.
    std::vector<std::byte> memory(kBytes);
    void* to_send = nullptr;
    void* to_recv = nullptr;
    if (plugin.reg(link.sender(), memory.data(), kBytes, kPointerHost, &to_send) != 0 ||
        plugin.reg(link.receiver(), memory.data(), kBytes, kPointerHost, &to_recv) != 0) {
      return "regMr failed";
    }
    for (int i = 0; i < 4; ++i) {
      if (!link.send(memory.data(), kBytes, to_send).ok() ||
          !link.recv(memory.data(), 64, to_recv).ok()) {
        break;  // the first message is larger than its receive: an error is right
      }
    }
    const std::int64_t begin = monotonic_ns();
    const int result = link.close();
    const std::int64_t took = monotonic_ns() - begin;
    if (result != 0) {
      return failed(plugin, "close with requests under way", result).message;
    }
    return took > kAtOnceNs ? fmt::format("close took {} ms", took / 1'000'000) : "";
  });
}

}  // namespace isthmus::net_plugin
