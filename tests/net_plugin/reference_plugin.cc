// A plain network plug-in of NCCL over one TCP connection a comm, versions 8 and 12: honest, or
// with the fault that REFERENCE_FAULT names, for the test of net_plugin_perf's checks.
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "plugins/nccl/shims/tables.h"

namespace {

using isthmus::nccl::shims::CommConfig;
using isthmus::nccl::shims::DeviceHandle;
using isthmus::nccl::shims::Log;
using isthmus::nccl::shims::NetV12;
using isthmus::nccl::shims::NetV8;
using isthmus::nccl::shims::Profiler;
using isthmus::nccl::shims::PropertiesV12;
using isthmus::nccl::shims::PropertiesV8;

constexpr int kSystemError = 2;
constexpr int kInvalidUsage = 5;
constexpr int kRemoteError = 6;
constexpr std::size_t kRequestsMost = 32;

bool fault(std::string_view name) {
  const char* const set = std::getenv("REFERENCE_FAULT");
  return set != nullptr && name == set;
}

int socket_flags() {
  return SOCK_NONBLOCK | (fault("inherits") ? 0 : SOCK_CLOEXEC);
}

struct Comm;

struct Request {
  Comm* comm = nullptr;
  std::byte* data = nullptr;
  std::size_t bytes = 0;  // of a receive: the room, then what came
  std::size_t at = 0;     // of header and data
  std::uint64_t header = 0;
  bool done = false;
};

// One direction. Requests end in the order of posting; test() drives all.
struct Comm {
  int fd = -1;
  bool sends = false;
  int error = 0;
  std::deque<std::unique_ptr<Request>> open;

  // Moves bytes of the request; false when the socket has no more for now.
  bool move(Request* request, std::byte* place, std::size_t bytes) {
    const ssize_t moved =
        sends ? ::send(fd, place, bytes, MSG_NOSIGNAL) : ::recv(fd, place, bytes, 0);
    if (moved > 0) {
      request->at += static_cast<std::size_t>(moved);
      return true;
    }
    if ((moved == 0 || (errno != EAGAIN && errno != EINTR)) && !fault("deaf")) {
      error = kRemoteError;
    }
    return false;
  }

  bool step(Request* request) {
    if (request->at < sizeof(request->header)) {
      return move(request, reinterpret_cast<std::byte*>(&request->header) + request->at,
                  sizeof(request->header) - request->at);
    }
    if (!sends && request->at == sizeof(request->header)) {
      if (request->header > request->bytes && !fault("overruns")) {
        error = kInvalidUsage;
        return false;
      }
      request->bytes = request->header;
    }
    const std::size_t end = sizeof(request->header) + request->bytes;
    if (request->at < end) {
      return move(request, request->data + request->at - sizeof(request->header),
                  end - request->at);
    }
    request->done = !(request->bytes == 0 && fault("loses_nothing"));
    if (!sends && request->bytes > 50 && fault("flips")) {
      request->data[50] ^= std::byte{1};
    }
    return false;
  }

  void progress() {
    for (const auto& request : open) {
      while (!request->done && error == 0 && step(request.get())) {
      }
      if (!request->done) {
        return;
      }
    }
  }
};

struct Listening {
  int fd = -1;
  std::uint64_t nonce = 0;
  std::vector<int> unknown;  // came, have not yet said the nonce
};

// In NCCL's handle; `calling` is kept from one call of connect to the next.
struct Handle {
  std::uint64_t nonce = 0;
  in_port_t port = 0;
  int calling = -1;
};

int init() {
  if (fault("prints")) {
    std::puts("reference: hello");
    std::fflush(stdout);
  }
  return 0;
}

int devices(int* count) {
  *count = 1;
  return 0;
}

template <typename Properties>
int properties(int, Properties* out) {
  static char name[] = "reference0";
  std::memset(static_cast<void*>(out), 0, sizeof(*out));
  out->name = name;
  out->ptr_support = 1;
  out->speed = fault("no_speed") ? 0 : 10'000;
  out->max_comms = 1024;
  out->max_recvs = 1;
  if constexpr (requires { out->max_p2p_bytes; }) {
    out->max_p2p_bytes = std::size_t{1} << 40;
    out->max_coll_bytes = std::size_t{1} << 40;
  }
  return 0;
}

int listen_at(void* place, void** comm) {
  auto listening = std::make_unique<Listening>();
  listening->fd = ::socket(AF_INET, SOCK_STREAM | socket_flags(), 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listening->fd, any, length) != 0 || ::listen(listening->fd, 64) != 0 ||
      ::getsockname(listening->fd, any, &length) != 0) {
    return kSystemError;
  }
  listening->nonce = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  const Handle handle = {listening->nonce, address.sin_port, -1};
  std::memcpy(place, &handle, sizeof(handle));
  *comm = listening.release();
  return 0;
}

int connect_to(void* place, void** comm) {
  *comm = nullptr;
  Handle handle;
  std::memcpy(&handle, place, sizeof(handle));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = handle.port;
  if (handle.calling < 0) {
    handle.calling = ::socket(AF_INET, SOCK_STREAM | socket_flags(), 0);
    std::memcpy(place, &handle, sizeof(handle));
  }
  if (::connect(handle.calling, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) !=
          0 &&
      errno != EISCONN) {
    return errno == EINPROGRESS || errno == EALREADY ? 0 : kRemoteError;
  }
  if (::send(handle.calling, &handle.nonce, sizeof(handle.nonce), MSG_NOSIGNAL) !=
      sizeof(handle.nonce)) {
    return kRemoteError;
  }
  if (fault("waits_in_connect")) {
    char answer = 0;
    ::fcntl(handle.calling, F_SETFL, 0);
    static_cast<void>(::recv(handle.calling, &answer, 1, 0));
  }
  auto made = std::make_unique<Comm>();
  made->fd = handle.calling;
  made->sends = true;
  *comm = made.release();
  handle.calling = -1;
  std::memcpy(place, &handle, sizeof(handle));
  return 0;
}

int accept_from(void* place, void** comm) {
  *comm = nullptr;
  auto* const listening = static_cast<Listening*>(place);
  const int came = ::accept4(listening->fd, nullptr, nullptr, socket_flags());
  if (came >= 0) {
    listening->unknown.push_back(came);
  }
  for (std::size_t i = 0; i < listening->unknown.size(); ++i) {
    const int fd = listening->unknown[i];
    std::uint64_t nonce = 0;
    if (fault("waits_for_strangers")) {
      ::fcntl(fd, F_SETFL, 0);
    }
    const ssize_t got = ::recv(fd, &nonce, sizeof(nonce), MSG_PEEK);
    if (got < 0 || (got > 0 && got < static_cast<ssize_t>(sizeof(nonce)))) {
      continue;
    }
    listening->unknown.erase(listening->unknown.begin() + static_cast<std::ptrdiff_t>(i));
    if (got == 0 || nonce != listening->nonce) {
      ::close(fd);
      return 0;
    }
    static_cast<void>(::recv(fd, &nonce, sizeof(nonce), 0));
    auto made = std::make_unique<Comm>();
    made->fd = fd;
    *comm = made.release();
    return 0;
  }
  return 0;
}

int post(void* place, void* data, std::size_t bytes, void** request) {
  auto* const comm = static_cast<Comm*>(place);
  if (fault("keeps_the_hint") && *request == reinterpret_cast<void*>(1)) {  // NOLINT
    return 0;
  }
  if (comm->open.size() >= kRequestsMost) {
    if (fault("forgets_request")) {
      return 0;
    }
    *request = nullptr;
    return fault("refuses_when_full") ? kSystemError : 0;
  }
  auto made = std::make_unique<Request>();
  made->comm = comm;
  made->data = static_cast<std::byte*>(data);
  made->bytes = bytes;
  made->header = comm->sends ? bytes : 0;
  *request = made.get();
  comm->open.push_back(std::move(made));
  if (fault("waits_in_send") && comm->sends) {
    while (!comm->open.back()->done && comm->error == 0) {
      comm->progress();
    }
  }
  return 0;
}

int test(void* place, int* done, int* sizes) {
  auto* const request = static_cast<Request*>(place);
  Comm* const comm = request->comm;
  *done = 0;
  const bool early = comm->sends && fault("done_early") && request->bytes > 0;
  if (!early) {
    comm->progress();
  }
  if (request->done || early) {
    *done = 1;
    if (sizes != nullptr) {
      *sizes = static_cast<int>(request->bytes) + (fault("wrong_size") ? 1 : 0);
    }
    if (!early) {
      std::erase_if(comm->open, [&](const auto& one) { return one.get() == request; });
    }
    return 0;
  }
  return comm->error;
}

int close_comm(void* place) {
  const std::unique_ptr<Comm> comm(static_cast<Comm*>(place));
  while (fault("waits_in_close") && !comm->open.empty()) {
    comm->progress();
  }
  ::close(comm->fd);
  return 0;
}

int close_listen(void* place) {
  if (fault("crashes")) {
    std::abort();
  }
  const std::unique_ptr<Listening> listening(static_cast<Listening*>(place));
  for (const int fd : listening->unknown) {
    ::close(fd);
  }
  ::close(listening->fd);
  return 0;
}

int reg_mr(void*, void*, std::size_t, int type, void** region) {
  *region = nullptr;
  return type == 1 || fault("takes_cuda") ? 0 : kInvalidUsage;
}

int dereg_mr(void*, void*) {
  return 0;
}

int no_flush(void*, int, void**, int*, void**, void**) {
  return kInvalidUsage;
}

}  // namespace

// Data under the names that NCCL looks up.
// NOLINTBEGIN(readability-identifier-naming)
#define REFERENCE_TABLE extern "C" __attribute__((visibility("default"))) const

REFERENCE_TABLE NetV8 ncclNetPlugin_v8 = {
    "reference",
    [](Log) { return init(); },
    devices,
    properties<PropertiesV8>,
    [](int, void* handle, void** comm) { return listen_at(handle, comm); },
    [](int, void* handle, void** comm, DeviceHandle**) { return connect_to(handle, comm); },
    [](void* listening, void** comm, DeviceHandle**) { return accept_from(listening, comm); },
    reg_mr,
    nullptr,
    dereg_mr,
    [](void* comm, void* data, int bytes, int, void*, void** request) {
      return post(comm, data, static_cast<std::size_t>(bytes), request);
    },
    [](void* comm, int, void** data, int* bytes, int*, void**, void** request) {
      return post(comm, data[0], static_cast<std::size_t>(bytes[0]), request);
    },
    no_flush,
    test,
    close_comm,
    close_comm,
    close_listen,
    nullptr,
    nullptr};

REFERENCE_TABLE NetV12 ncclNetPlugin_v12 = {
    "reference",
    [](void** context, std::uint64_t, CommConfig*, Log, Profiler) {
      *context = nullptr;
      return init();
    },
    devices,
    properties<PropertiesV12>,
    [](void*, int, void* handle, void** comm) { return listen_at(handle, comm); },
    [](void*, int, void* handle, void** comm, DeviceHandle**) { return connect_to(handle, comm); },
    [](void* listening, void** comm, DeviceHandle**) { return accept_from(listening, comm); },
    reg_mr,
    nullptr,
    dereg_mr,
    [](void* comm, void* data, std::size_t bytes, int, void*, void*, void** request) {
      return post(comm, data, bytes, request);
    },
    [](void* comm, int, void** data, std::size_t* bytes, int*, void**, void**, void** request) {
      return post(comm, data[0], bytes[0], request);
    },
    no_flush,
    test,
    close_comm,
    close_comm,
    close_listen,
    nullptr,
    nullptr,
    nullptr,
    [](void*) { return 0; },
    nullptr};

// NOLINTEND(readability-identifier-naming)
