#include "plugins/nccl/net.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/fork.h"
#include "base/hash.h"
#include "base/version.h"
#include "plugins/nccl/listener.h"
#include "plugins/nccl/registry.h"
#include "plugins/nccl/report.h"
#include "transport/tcp/sockets.h"

namespace isthmus::nccl {
namespace {

// What NCCL itself assumes where nobody knows, and a modest figure for loopback, in Mbit/s.
constexpr int kUnknownMbps = 10'000;
constexpr int kLoopbackMbps = 40'000;
constexpr std::size_t kFlowsMax = 16;
// Calls of an alltoall to all peers of a large job, many channels each.
constexpr std::size_t kDescriptorsWanted = 65'536;
// Six rounds in which every address refuses, 310 ms in all: it listened before its handle was
// known, so it is gone.
constexpr unsigned kRefusedRounds = 6;
constexpr std::int64_t kPauseNs = 10'000'000;
constexpr std::int64_t kNsPerS = 1'000'000'000;

std::uint64_t random_number() {
  std::uint64_t out = 0;
  while (out == 0) {
    if (::getrandom(&out, sizeof(out), 0) != static_cast<ssize_t>(sizeof(out))) {
      out = mix64(static_cast<std::uint64_t>(monotonic_ns()));
    }
  }
  return out;
}

Error forked() {
  return {.code = Code::kInternal,
          .message =
              "This process was forked from one that uses the isthmus plug-in, whose "
              "connections it must not touch. Start workers by spawn or forkserver."};
}

// The PCI function: drivers of virtual cards put a node of their own below it.
std::string pci_function(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const bool below = slash != std::string::npos && path.compare(slash + 1, 6, "virtio") == 0;
  return below ? path.substr(0, slash) : path;
}

}  // namespace

Net& Net::get() {
  // Never destroyed: NCCL's threads may outlive main().
  static Net& one = *std::make_unique<Net>().release();
  return one;
}

Status Net::init(const std::string& abi) {
  install_fork_handlers();
  if (forked_child()) {
    return forked();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!probed_) {
    tcp::raise_descriptor_limit(kDescriptorsWanted);
    ISTHMUS_ASSIGN(const tcp::PortRange range, tcp::PortRange::parse(env().PORT_RANGE));
    ISTHMUS_TRY(Listener::get().start(range));
    ISTHMUS_TRY(probe());
    probed_ = true;
  }
  if (users_++ == 0) {
    announce(abi);
  }
  return {};
}

void Net::finish() {
  const std::lock_guard<std::mutex> lock(mutex_);
  users_ = std::max(users_ - 1, 0);
  if (users_ == 0) {
    calling_.clear();
  }
}

Status Net::probe() {
  const tcp::InterfaceFilter filter = tcp::InterfaceFilter::parse(env().IFACE);
  const Listener& listener = Listener::get();
  ISTHMUS_ASSIGN(ours_, tcp::local_address(filter, launcher_variable("MASTER_ADDR"),
                                           listener.port(), listener.ipv6()));
  ISTHMUS_ASSIGN(const std::vector<tcp::Interface> all, tcp::probe_interfaces());
  Device device;
  device.name = "isthmus";
  device.guid = ours_.host;
  unsigned cards = 0;
  for (const tcp::Interface& interface : all) {
    if (interface.kind == tcp::Interface::Kind::kLoopback) {
      continue;
    }
    const char* why = unfit(interface, filter);
    if (why == nullptr && interface.addresses.empty()) {
      why = "it has no address";
    }
    if (why != nullptr) {
      refused_ += fmt::format("{}{} ({})", refused_.empty() ? "" : ", ", interface.name, why);
      continue;
    }
    const int speed = interface.speed_mbps > 0 ? interface.speed_mbps : kUnknownMbps;
    device.speed_mbps += speed;
    device.guid = hash_combine(device.guid, hash_bytes(interface.name));
    device.name += (cards == 0 ? ":" : "+") + interface.name;
    device.pci_path = cards == 0 ? pci_function(interface.pci_path) : "";
    rails_ += fmt::format("{}{} {} {} Mbit/s{}", rails_.empty() ? "" : ", ", interface.name,
                          to_string(interface.addresses.front()), speed,
                          interface.speed_mbps > 0 ? "" : " assumed");
    ++cards;
  }
  if (cards == 0) {
    device.name += ":lo";
    device.speed_mbps = kLoopbackMbps;
    rails_ = "lo, this host alone";
  }
  devices_ = {device};
  return {};
}

void Net::announce(const std::string& abi) const {
  report(LogLevel::kInfo,
         fmt::format("isthmus {}, net ABI {}: 1 device over {}; port {}{}{}", kVersion, abi, rails_,
                     Listener::get().port(), refused_.empty() ? "" : "; not used: ", refused_));
}

int Net::devices() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(devices_.size());
}

Result<Device> Net::device(int index) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (index < 0 || index >= static_cast<int>(devices_.size())) {
    return Error{.code = Code::kInvalidArgument,
                 .message = fmt::format("Device {} of isthmus was asked for; there are {}.", index,
                                        devices_.size())};
  }
  return devices_[static_cast<std::size_t>(index)];
}

Result<std::unique_ptr<ListenComm>> Net::listen(int index,
                                                std::span<std::byte, kHandleBytes> handle) {
  if (forked_child()) {
    return forked();
  }
  ISTHMUS_TRY(device(index));
  Handle out;
  ISTHMUS_ASSIGN(out.nonce, Listener::get().open());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    out.address = ours_;
  }
  encode_handle(out, handle);
  auto comm = std::make_unique<ListenComm>();
  comm->nonce = out.nonce;
  return comm;
}

Result<std::unique_ptr<SendComm>> Net::connect(int index,
                                               std::span<std::byte, kHandleBytes> handle) {
  if (forked_child()) {
    return forked();
  }
  ISTHMUS_TRY(device(index));
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = calling_.find(connect_token(handle));
  if (found == calling_.end()) {
    const std::int64_t now_ns = monotonic_ns();
    std::erase_if(calling_, [&](const auto& each) { return each.second->until_ns < now_ns; });
    auto calling = std::make_unique<Calling>();
    ISTHMUS_ASSIGN(calling->handle, decode_handle(handle));
    calling->order = connect_order(ours_, calling->handle.address);
    if (calling->order.empty()) {
      return Error{.code = Code::kInvalidArgument,
                   .message =
                       "The peer tells no address but its own loopback. ISTHMUS_IFACE of that "
                       "host leaves out every interface, or none is up."};
    }
    calling->until_ns = now_ns + env().CONNECT_TIMEOUT_S * kNsPerS;
    calling->hello.nonce = calling->handle.nonce;
    calling->hello.comm = random_number();
    calling->hello.pid = static_cast<std::uint32_t>(::getpid());
    const std::uint64_t token = random_number();
    set_connect_token(token, handle);
    found = calling_.emplace(token, std::move(calling)).first;
  }
  Result<std::unique_ptr<SendComm>> comm = step(found->second.get());
  if (!comm.ok() || *comm != nullptr) {
    calling_.erase(found);
    set_connect_token(0, handle);
  }
  return comm;
}

Result<std::unique_ptr<SendComm>> Net::step(Calling* calling) {
  const std::int64_t now_ns = monotonic_ns();
  if (calling->dial.state() == Dial::State::kIdle && now_ns >= calling->pause_until_ns) {
    call_next(calling, now_ns);
  }
  if (calling->dial.state() != Dial::State::kIdle) {
    const Dial::State state = calling->dial.poll(now_ns);
    if (state == Dial::State::kReady) {
      return finish_call(calling);
    }
    if (state == Dial::State::kFailed) {
      ISTHMUS_TRY(call_failed(calling, now_ns));
    }
  }
  return std::unique_ptr<SendComm>();
}

std::vector<tcp::Rail> Net::plan_flows(const Calling& calling, const tcp::Candidate& to) const {
  tcp::SocketAddress near;
  near.bytes = sizeof(near.storage);
  std::vector<tcp::Rail> rails;
  const int fd = calling.dial.fd().get();
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&near.storage), &near.bytes) == 0) {
    const bool named = !env().IFACE.empty() && env().IFACE.front() != '^';
    rails = rails_between(ours_, calling.handle.address, ip_of(near), to, named);
  }
  if (rails.empty()) {
    rails.push_back({.bound = false, .from = {}, .to = to});
  }
  const std::size_t count =
      std::min(kFlowsMax, rails.size() * static_cast<std::size_t>(env().FLOWS));
  std::vector<tcp::Rail> flows;
  for (std::size_t i = 0; i < count; ++i) {
    flows.push_back(rails[i % rails.size()]);
  }
  return flows;
}

void Net::call_next(Calling* calling, std::int64_t now_ns) {
  const tcp::Candidate& to = calling->order[calling->next];
  calling->dial.start({.bound = false, .from = {}, .to = to}, calling->hello, now_ns);
  if (calling->dial.state() != Dial::State::kConnecting) {
    return;
  }
  calling->flows = plan_flows(*calling, to);
  calling->hello.flags =
      (calling->flows.size() > 1 ? kHelloSeveral : 0) | (env().CRC ? kHelloChecked : 0);
  calling->dial.hello()->flags = calling->hello.flags;
}

Status Net::call_failed(Calling* calling, std::int64_t now_ns) {
  calling->tried += fmt::format("{}{}: {}", calling->tried.empty() ? "" : "; ",
                                to_string(calling->order[calling->next]), calling->dial.why());
  calling->all_refused &= calling->dial.refused();
  calling->dial.drop();
  if (++calling->next < calling->order.size()) {
    return {};
  }
  calling->rounds = calling->all_refused ? calling->rounds + 1 : 0;
  if (calling->rounds >= kRefusedRounds || now_ns >= calling->until_ns) {
    return Error{
        .code = calling->rounds >= kRefusedRounds ? Code::kPeerDead : Code::kTimeout,
        .message = fmt::format("cannot connect to the peer: {}. Is its process alive? Does a "
                               "firewall let ports of ISTHMUS_PORT_RANGE through? ISTHMUS_IFACE "
                               "chooses interfaces.",
                               calling->tried)};
  }
  calling->pause_until_ns = now_ns + (kPauseNs << std::min(calling->rounds, 6U));
  calling->next = 0;
  calling->all_refused = true;
  calling->tried.clear();
  return {};
}

std::unique_ptr<SendComm> Net::finish_call(Calling* calling) {
  SendComm::Setup setup;
  const std::uint32_t pid = calling->dial.peer_pid();
  setup.first = calling->dial.take();
  setup.hello = calling->hello;
  setup.flows = calling->flows;
  setup.peer = fmt::format("{} (pid {})", tcp::peer_name(setup.first), pid);
  setup.checked = (calling->hello.flags & kHelloChecked) != 0;
  return std::make_unique<SendComm>(std::move(setup));
}

Result<std::unique_ptr<RecvComm>> Net::accept(const ListenComm& listen) {
  if (forked_child()) {
    return forked();
  }
  std::optional<Listener::Accepted> next = Listener::get().next(listen.nonce);
  if (!next) {
    return std::unique_ptr<RecvComm>();
  }
  return std::make_unique<RecvComm>(std::move(next->first), std::move(next->second));
}

void Net::close(const ListenComm& listen) {
  if (!forked_child()) {
    Listener::get().close(listen.nonce);
  }
}

Result<bool> test_request(Request* request, std::uint64_t* bytes) {
  Comm& comm = *request->comm;
  {
    const std::lock_guard<std::mutex> lock(comm.mutex());
    if (!request->done && comm.failure() == nullptr) {
      comm.progress();
    }
    if (request->done) {
      *bytes = request->bytes;
      comm.release(request);
      return true;
    }
    if (comm.failure() != nullptr) {
      return *comm.failure();
    }
  }
  registry_idle(&comm);
  return false;
}

}  // namespace isthmus::nccl
