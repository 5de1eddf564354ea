#pragma once

#include <cstddef>
#include <cstdint>

#include "plugins/nccl/shims/tables.h"

namespace isthmus::nccl::shims {

// The calls of all versions in one form: C types in, ncclResult_t out; errors are logged here.

// ncclResult_t, as far as it is used.
enum Outcome : int {
  kSuccess = 0,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
};

inline constexpr int kPtrHost = 1;
// Requests are in order and there is no need for more than one buffer each.
inline constexpr int kMaxRecvs = 1;
inline constexpr int kMaxComms = 65'536;

// What getProperties of all versions tells; strings live as long as the process.
struct Facts {
  char* name;
  char* pci_path;  // nullptr: none
  std::uint64_t guid;
  int speed;
  float latency;
};

int init(const char* abi, Log log);
int finalize();
int devices(int* count);
int facts(int device, Facts* out);
int listen(int device, void* handle, void** comm);
// `traffic_class`: DSCP of the connections, -1: as the system has it.
int connect(int device, int traffic_class, void* handle, void** comm, DeviceHandle** gpu);
int accept(void* listening, void** comm, DeviceHandle** gpu);
int reg_mr(int type, void** region);
int isend(void* comm, void* data, std::size_t bytes, void** request);
int irecv(void* comm, int count, void** data, std::size_t bytes, void** request);
int iflush(void** request);
int test(void* request, int* done, int* sizes);
int close_send(void* comm);
int close_recv(void* comm);
int close_listen(void* comm);

}  // namespace isthmus::nccl::shims
