#include "transport/shm/shm_node.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "transport/shm/process_memory.h"

namespace isthmus {
namespace {

constexpr std::uint32_t kHelloMagic = 0x48545349;
constexpr std::size_t kFdsMax = 5;  // segment, bell, lanes; pidfd and heap where there are

struct Hello {
  std::uint32_t magic = kHelloMagic;
  std::uint32_t version = kMappedVersion;
  std::uint64_t nonce = 0;
  std::uint64_t token = 0;
  std::int32_t rank = -1;
  std::int32_t has_life = 0;
  std::int32_t has_heap = 0;
  std::int32_t unused = 0;
};

// An address in the abstract namespace: no file, scoped to the network namespace.
sockaddr_un abstract_address(const std::string& name, socklen_t* bytes) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  *bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return address;
}

Result<Fd> unix_socket() {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return system_error(Code::kResource, errno, "cannot make a unix socket");
  }
  return Fd(fd);
}

Status wait_for(const Fd& fd, short events, Deadline deadline, const std::string& what) {
  for (;;) {
    const std::int64_t left = std::min<std::int64_t>(deadline.left_ms(monotonic_ns()), 1000);
    pollfd one{.fd = fd.get(), .events = events, .revents = 0};
    const int ready = ::poll(&one, 1, static_cast<int>(left));
    if (ready > 0) {
      return {};
    }
    if (ready < 0 && errno != EINTR) {
      return system_error(Code::kIo, errno, fmt::format("cannot wait for {}", what));
    }
    if (deadline.passed(monotonic_ns())) {
      return Error{
          .code = Code::kTimeout,
          .message = fmt::format("timed out waiting for {} on this node; it is stopped, or has "
                                 "not reached its init_process_group yet",
                                 what)};
    }
  }
}

Status check_same_user(const Fd& socket) {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return system_error(Code::kIo, errno, "cannot read a local peer's credentials");
  }
  if (credentials.uid != ::getuid()) {
    return Error{.code = Code::kProtocol,
                 .message = fmt::format("a process of user {} tried to join this job of user {}",
                                        credentials.uid, ::getuid())};
  }
  return {};
}

int peer_pid(const Fd& socket) {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0
             ? credentials.pid
             : 0;
}

}  // namespace

Result<std::unique_ptr<ShmNode>> ShmNode::create(const Options& options) {
  std::unique_ptr<ShmNode> node(new ShmNode);
  node->options_ = options;
  ISTHMUS_ASSIGN(node->segment_, Segment::create({.rank = options.rank,
                                                  .world_size = options.world_size,
                                                  .stage_bytes = options.stage_bytes,
                                                  .named = options.named,
                                                  .unshared = options.unshared}));
  if (!options.unshared && options.world_size > 1) {
    ISTHMUS_ASSIGN(node->lanes_file_,
                   LaneMemory::reserve(options.rank, static_cast<std::size_t>(options.world_size),
                                       options.named));
  }
  SharedHeap heap;
  if (!options.unshared && !options.named && options.world_size > 1 && options.heap_bytes != 0) {
    Result<SharedHeap> made = SharedHeap::create(options.rank, options.heap_bytes);
    if (made.ok()) {
      heap = std::move(made).value();
    } else {
      log(LogLevel::kInfo, "shm", "{}; buffers of the group are private memory",
          made.error().message);
    }
  }
  node->pool_ = std::make_shared<BufferPool>(std::move(heap));
  node->probe_ = std::make_unique<std::uint64_t>(node->segment_.header().token);
  node->segment_.header().probe = reinterpret_cast<std::uintptr_t>(node->probe_.get());
  const int bell = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (bell < 0) {
    return system_error(Code::kResource, errno, "cannot make an eventfd");
  }
  node->bell_ = Fd(bell);
  node->life_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  std::uint64_t salt = 0;
  if (::getrandom(&salt, sizeof salt, 0) != sizeof salt) {
    return system_error(Code::kIo, errno, "cannot draw a random socket name");
  }
  node->socket_name_ = fmt::format("isthmus-{:016x}-{}-{:016x}", options.nonce, options.rank, salt);
  ISTHMUS_ASSIGN(node->listener_, unix_socket());
  socklen_t bytes = 0;
  const sockaddr_un address = abstract_address(node->socket_name_, &bytes);
  if (::bind(node->listener_.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0 ||
      ::listen(node->listener_.get(), SOMAXCONN) != 0) {
    return system_error(Code::kIo, errno, "cannot listen on an abstract unix socket");
  }
  return node;
}

ShmNode::LocalPeer ShmNode::self() const {
  return {.rank = options_.rank, .socket_name = socket_name_, .token = segment_.header().token};
}

Status ShmNode::send_self(const Fd& socket) {
  Hello hello;
  hello.nonce = options_.nonce;
  hello.token = segment_.header().token;
  hello.rank = options_.rank;
  const Fd& heap = pool_->heap().fd();
  hello.has_life = life_.valid() ? 1 : 0;
  hello.has_heap = heap.valid() ? 1 : 0;
  std::array<int, kFdsMax> fds = {segment_.fd().get(), bell_.get(), lanes_.fd().get()};
  std::size_t count = 3;
  for (const Fd* fd : {static_cast<const Fd*>(&life_), &heap}) {
    if (fd->valid()) {
      fds[count++] = fd->get();
    }
  }
  const std::size_t fd_bytes = count * sizeof(int);
  iovec data{.iov_base = &hello, .iov_len = sizeof hello};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kFdsMax * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(fd_bytes);
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(fd_bytes);
  std::memcpy(CMSG_DATA(rights), fds.data(), fd_bytes);
  const ssize_t sent = ::sendmsg(socket.get(), &message, MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(sizeof hello)) {
    return system_error(Code::kIo, errno, "cannot hand shared memory to a local peer");
  }
  return {};
}

Status ShmNode::receive_peer(Fd socket, std::span<const LocalPeer> peers, Deadline deadline,
                             int* rank) {
  *rank = -1;
  ISTHMUS_TRY(wait_for(socket, POLLIN, deadline, "the shared memory of a local peer"));
  Hello hello;
  iovec data{.iov_base = &hello, .iov_len = sizeof hello};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kFdsMax * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  std::array<Fd, kFdsMax> fds;
  const cmsghdr* rights = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (rights != nullptr && rights->cmsg_type == SCM_RIGHTS) {
    const std::size_t count = std::min((rights->cmsg_len - CMSG_LEN(0)) / sizeof(int), kFdsMax);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(rights) + i * sizeof(int), sizeof fd);
      fds[i] = Fd(fd);
    }
  }
  const auto known = std::find_if(peers.begin(), peers.end(),
                                  [&](const LocalPeer& peer) { return peer.rank == hello.rank; });
  if (got != static_cast<ssize_t>(sizeof hello) || hello.magic != kHelloMagic ||
      hello.nonce != options_.nonce || known == peers.end() || !fds[0].valid() || !fds[1].valid() ||
      !fds[2].valid()) {
    return Error{
        .code = Code::kProtocol,
        .message = fmt::format("rank {}: a stranger spoke on the unix socket of this node's "
                               "ranks, expected a rank of this job (nonce and 3 "
                               "descriptors), got {} bytes naming rank {}; is another "
                               "job using the same store?",
                               options_.rank, got, hello.rank)};
  }
  Peer peer;
  ISTHMUS_ASSIGN(peer.segment, Segment::attach(std::move(fds[0]), hello.rank, known->token));
  ISTHMUS_ASSIGN(peer.lanes,
                 LaneMemory::attach(std::move(fds[2]), hello.rank, options_.rank, locals_));
  peer.bell = std::move(fds[1]);
  peer.pid = peer_pid(socket);
  if (hello.has_heap != 0) {
    attach_heap(std::move(fds[hello.has_life != 0 ? 4 : 3]), hello.rank, &peer);
  }
  // A thread of this process may end while the process lives.
  const bool own_process = peer.pid == ::getpid();
  peer.life = hello.has_life != 0 && !own_process ? std::move(fds[3]) : std::move(socket);
  *rank = hello.rank;
  peers_.insert_or_assign(hello.rank, std::move(peer));
  return {};
}

Status ShmNode::connect_lower(const LocalPeer& peer, Deadline deadline,
                              std::map<int, Fd>* waiting) {
  ISTHMUS_ASSIGN(Fd socket, unix_socket());
  socklen_t bytes = 0;
  const sockaddr_un address = abstract_address(peer.socket_name, &bytes);
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0) {
    // EAGAIN: the peer's backlog is full for the moment.
    if ((errno != EAGAIN && errno != EINTR) || deadline.passed(monotonic_ns())) {
      return system_error(Code::kIo, errno,
                          fmt::format("cannot reach rank {} of this node for shared memory; "
                                      "ISTHMUS_SHM=0 uses TCP instead",
                                      peer.rank));
    }
    ::poll(nullptr, 0, 1);
  }
  ISTHMUS_TRY(check_same_user(socket));
  ISTHMUS_TRY(send_self(socket));
  waiting->insert_or_assign(peer.rank, std::move(socket));
  return {};
}

Status ShmNode::accept_one(std::span<const LocalPeer> peers, Deadline deadline) {
  ISTHMUS_TRY(wait_for(listener_, POLLIN, deadline, "the ranks of this node"));
  const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    return errno == EAGAIN || errno == ECONNABORTED
               ? Status()
               : Status(system_error(Code::kIo, errno, "cannot accept a local peer"));
  }
  Fd socket(fd);
  if (!check_same_user(socket).ok()) {
    return {};
  }
  ISTHMUS_TRY(send_self(socket));
  int rank = -1;
  Status received = receive_peer(std::move(socket), peers, deadline, &rank);
  if (!received.ok() && received.error().code == Code::kProtocol) {
    log(LogLevel::kWarn, "shm", "{}", received.error().message);
    return {};
  }
  return received;
}

Status ShmNode::connect(std::span<const LocalPeer> peers, Deadline deadline) {
  locals_ = {options_.rank};
  for (const LocalPeer& peer : peers) {
    locals_.push_back(peer.rank);
  }
  std::sort(locals_.begin(), locals_.end());
  ISTHMUS_ASSIGN(lanes_, LaneMemory::create(options_.rank, locals_, std::move(lanes_file_)));
  std::map<int, Fd> waiting;
  for (const LocalPeer& peer : peers) {
    if (peer.rank < options_.rank) {
      ISTHMUS_TRY(connect_lower(peer, deadline, &waiting));
    }
  }
  const auto missing = [&] {
    return std::any_of(peers.begin(), peers.end(), [&](const LocalPeer& peer) {
      return peer.rank > options_.rank && !peers_.contains(peer.rank);
    });
  };
  while (missing()) {
    ISTHMUS_TRY(accept_one(peers, deadline));
  }
  for (auto& [rank, socket] : waiting) {
    int got = -1;
    ISTHMUS_TRY(receive_peer(std::move(socket), peers, deadline, &got));
  }
  listener_.reset();  // nobody else may come
  heaps_ = pool_->heap().size() != 0;
  for (const auto& [rank, peer] : peers_) {
    heaps_ = heaps_ && peer.heap.size() != 0;
  }
  return probe_pulls(deadline);
}

// A peer whose heap cannot be mapped (ulimit -v) has none for this rank, which then exposes none.
void ShmNode::attach_heap(Fd fd, int rank, Peer* peer) const {
  Result<SharedHeap> heap = SharedHeap::attach(std::move(fd), rank);
  if (heap.ok()) {
    peer->heap = std::move(heap).value();
  } else {
    log(LogLevel::kWarn, "shm",
        "{} of rank {}; this rank's large collectives go through staging (raise ulimit -v, or set "
        "ISTHMUS_HEAP_GB on every rank)",
        heap.error().message, rank);
  }
}

const SegmentHeader& ShmNode::header_of(int world_rank) const {
  return world_rank == options_.rank ? segment_.header() : peers_.at(world_rank).segment.header();
}

bool ShmNode::can_pull(int reader, int owner) const {
  const auto place = static_cast<std::size_t>(
      std::lower_bound(locals_.begin(), locals_.end(), owner) - locals_.begin());
  const std::uint64_t word = header_of(reader).pulls[place / 64].load(std::memory_order_relaxed);
  return reader == owner || (word >> (place % 64) & 1U) != 0;
}

// A libc that has the call, and a kernel that had it yesterday, prove nothing: seccomp, yama or
// another user namespace deny it at run time. So each rank reads a word of each peer, and tells.
Status ShmNode::probe_pulls(Deadline deadline) {
  SegmentHeader& own = segment_.header();
  for (std::size_t place = 0; place < locals_.size(); ++place) {
    const int rank = locals_[place];
    if (!options_.pull || locals_.size() > kPullRanksMax || rank == options_.rank) {
      continue;
    }
    const SegmentHeader& theirs = header_of(rank);
    std::uint64_t word = 0;
    const Status read = pull(rank, std::bit_cast<const void*>(theirs.probe),
                             reinterpret_cast<std::byte*>(&word), sizeof word);
    if (read.ok() && word == theirs.token) {
      own.pulls[place / 64].fetch_or(1ULL << (place % 64), std::memory_order_relaxed);
    } else if (refused_by_ < 0) {
      refused_by_ = rank;
      refused_errno_ = read.ok() ? EFAULT : read.error().sys_errno;
    }
  }
  own.probed.store(1, std::memory_order_release);
  for (const int rank : locals_) {
    while (header_of(rank).probed.load(std::memory_order_acquire) == 0) {
      if (deadline.passed(monotonic_ns())) {
        return Error{.code = Code::kTimeout,
                     .culprit = rank,
                     .message = fmt::format("timed out waiting for rank {} of this node, which has "
                                            "handed out its memory and not gone on",
                                            rank)};
      }
      look_for_dead();
      if (is_dead(rank)) {
        return Error{.code = Code::kPeerDead,
                     .culprit = rank,
                     .message = fmt::format("rank {} of this node died while it joined", rank)};
      }
      ::poll(nullptr, 0, 1);
    }
  }
  warn_of_forbidden_pulls();
  return {};
}

// One line a node: by its first rank that was refused.
void ShmNode::warn_of_forbidden_pulls() const {
  const auto refused = [&](int reader) {
    return std::any_of(locals_.begin(), locals_.end(),
                       [&](int owner) { return !can_pull(reader, owner); });
  };
  if (refused_by_ >= 0 && *std::find_if(locals_.begin(), locals_.end(), refused) == options_.rank) {
    log(LogLevel::kWarn, "shm",
        "rank {} may not read the memory of rank {} of this node (process_vm_readv: {}): staging "
        "is used between ranks where that is so. Allow it (kernel.yama.ptrace_scope=0, docker run "
        "--cap-add=SYS_PTRACE), or set ISTHMUS_CMA=0 to say that it is meant",
        options_.rank, refused_by_, ::strerrorname_np(refused_errno_));
  }
}

bool ShmNode::pulls(std::span<const int> world_ranks) const {
  return std::all_of(world_ranks.begin(), world_ranks.end(), [&](int reader) {
    return std::all_of(world_ranks.begin(), world_ranks.end(),
                       [&](int owner) { return can_pull(reader, owner); });
  });
}

Status ShmNode::pull(int world_rank, const void* address, std::byte* into,
                     std::size_t bytes) const {
  return read_process(peers_.at(world_rank).pid, address, into, bytes, world_rank);
}

MappedPeer ShmNode::resolve(int world_rank, std::uint64_t group_key) const {
  MappedPeer out;
  out.world_rank = world_rank;
  const Segment* segment = &segment_;
  const SharedHeap* heap = &pool_->heap();
  out.bell_fd = bell_.get();
  if (world_rank != options_.rank) {
    const auto found = peers_.find(world_rank);
    if (found == peers_.end()) {
      return out;
    }
    segment = &found->second.segment;
    heap = &found->second.heap;
    out.bell_fd = found->second.bell.get();
  }
  out.block = segment->find_group(group_key);
  out.stage = segment->stage();
  out.heap = heap->data();
  out.heap_bytes = heap->size();
  out.bell = &segment->header().bell;
  return out;
}

std::vector<int> ShmNode::peers() const {
  std::vector<int> out;
  out.reserve(peers_.size());
  for (const auto& [rank, peer] : peers_) {
    out.push_back(rank);
  }
  return out;
}

ShmNode::LanePeer ShmNode::lane(int world_rank) const {
  const Peer& peer = peers_.at(world_rank);
  return {.out = lanes_.piece(world_rank, locals_),
          .in = peer.lanes.mine(),
          .chunk_bytes = LaneGeometry::of(locals_.size()).chunk_bytes,
          .bell = &peer.segment.header().bell,
          .bell_fd = peer.bell.get()};
}

std::uint64_t ShmNode::token_of(int world_rank) const {
  return peers_.at(world_rank).segment.header().token;
}

bool ShmNode::is_dead(int world_rank) const {
  const auto found = peers_.find(world_rank);
  return found != peers_.end() && found->second.dead;
}

void ShmNode::poll_dead(std::vector<int>* dead) {
  look_for_dead();
  for (auto& [rank, peer] : peers_) {
    if (peer.dead && !peer.told) {
      peer.told = true;
      dead->push_back(rank);
    }
  }
}

void ShmNode::look_for_dead() {
  std::vector<pollfd> fds;
  std::vector<Peer*> order;
  for (auto& [rank, peer] : peers_) {
    if (!peer.dead) {
      fds.push_back({.fd = peer.life.get(), .events = POLLIN, .revents = 0});
      order.push_back(&peer);
    }
  }
  if (fds.empty() || ::poll(fds.data(), fds.size(), 0) <= 0) {
    return;
  }
  for (std::size_t i = 0; i < fds.size(); ++i) {
    if (fds[i].revents != 0) {
      order[i]->dead = true;
      ++deaths_;
    }
  }
}

int ShmNode::life_of(int world_rank) const {
  const auto found = peers_.find(world_rank);
  return found == peers_.end() ? -1 : found->second.life.get();
}

int ShmNode::pid_of(int world_rank) const {
  const auto found = peers_.find(world_rank);
  return found == peers_.end() ? 0 : found->second.pid;
}

void ShmNode::drain_bell() const {
  std::uint64_t rings = 0;
  // EAGAIN only says that nobody rang.
  [[maybe_unused]] const ssize_t got = ::read(bell_.get(), &rings, sizeof rings);
}

void ShmNode::ring_self() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = ::write(bell_.get(), &one, sizeof one);
}

void ShmNode::wait_descriptors(std::vector<int>* fds) const {
  for (const auto& [rank, peer] : peers_) {
    if (!peer.dead) {
      fds->push_back(peer.life.get());
    }
  }
}

void ShmNode::ring(int bell_fd) {
  const std::uint64_t one = 1;
  // A full counter is a bell that rings already.
  [[maybe_unused]] const ssize_t put = ::write(bell_fd, &one, sizeof one);
}

}  // namespace isthmus
