// The seven tables, each a thin shim over calls.h. NCCL takes the newest that it knows.
#include "plugins/nccl/shims/tables.h"

#include <cstring>

#include "plugins/nccl/frame.h"
#include "plugins/nccl/shims/calls.h"

namespace isthmus::nccl::shims {
namespace {

// NCCL chose the parameters.
// NOLINTBEGIN(readability-function-size)

constexpr const char* kName = "isthmus";

template <typename Properties>
int properties(int device, Properties* out) {
  Facts known{};
  if (const int failed = facts(device, &known); failed != kSuccess) {
    return failed;
  }
  *out = Properties{};
  out->name = known.name;
  out->pci_path = known.pci_path;
  out->guid = known.guid;
  out->ptr_support = kPtrHost;
  out->speed = known.speed;
  out->latency = known.latency;
  out->max_comms = kMaxComms;
  out->max_recvs = kMaxRecvs;
  if constexpr (requires { out->virtual_device; }) {
    out->virtual_device.count = 1;
    out->virtual_device.devices[0] = device;
    out->max_p2p_bytes = kMessageBytesMax;
    out->max_coll_bytes = kMessageBytesMax;
  }
  if constexpr (requires { out->max_multi_request_size; }) {
    out->max_multi_request_size = 1;
  }
  if constexpr (requires { out->rail_id; }) {
    out->rail_id = -1;
    out->plane_id = -1;
  }
  return kSuccess;
}

template <int kVersion>
int init_plain(Log log) {
  static constexpr char kAbi[] = {'v', '0' + kVersion, 0};
  return init(kAbi, log);
}

int init_v10(Log log, Profiler /*profiler*/) {
  return init("v10", log);
}

// The context is the traffic class plus 2, never null: there is nothing else to keep.
int init_context(const char* abi, void** context, const CommConfig* config, Log log) {
  const int wanted = config == nullptr ? -1 : config->traffic_class;
  const std::uintptr_t kept =
      wanted < 0 || wanted > 255 ? 1 : static_cast<std::uintptr_t>(wanted) + 2;
  *context = reinterpret_cast<void*>(kept);  // NOLINT(performance-no-int-to-ptr)
  return init(abi, log);
}

int traffic_class_of(const void* context) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 2;
}

int init_v11(void** context, std::uint64_t /*comm*/, CommConfig* config, Log log,
             Profiler /*profiler*/) {
  return init_context("v11", context, config, log);
}

int init_v12(void** context, std::uint64_t /*comm*/, CommConfig* config, Log log,
             Profiler /*profiler*/) {
  return init_context("v12", context, config, log);
}

int finalize_context(void* /*context*/) {
  return finalize();
}

int set_attributes(void* /*context*/, void* /*attributes*/) {
  return kSuccess;
}

int listen_context(void* /*context*/, int device, void* handle, void** comm) {
  return listen(device, handle, comm);
}

int connect_v6(int device, void* handle, void** comm) {
  return connect(device, -1, handle, comm, nullptr);
}

int connect_v7(int device, void* handle, void** comm, DeviceHandle** gpu) {
  return connect(device, -1, handle, comm, gpu);
}

int connect_v10(int device, CommConfig* config, void* handle, void** comm, DeviceHandle** gpu) {
  return connect(device, config == nullptr ? -1 : config->traffic_class, handle, comm, gpu);
}

int connect_v11(void* context, int device, void* handle, void** comm, DeviceHandle** gpu) {
  return connect(device, traffic_class_of(context), handle, comm, gpu);
}

int accept_v6(void* listening, void** comm) {
  return accept(listening, comm, nullptr);
}

template <typename Bytes>
int reg_mr_any(void* /*comm*/, void* /*data*/, Bytes /*size*/, int type, void** region) {
  return reg_mr(type, region);
}

int reg_mr_dma_buf(void* /*comm*/, void* /*data*/, std::size_t /*size*/, int type,
                   std::uint64_t /*offset*/, int /*fd*/, void** region) {
  return reg_mr(type == kPtrHost ? 0 : type, region);  // not offered, whatever the type
}

int dereg_mr(void* /*comm*/, void* /*region*/) {
  return kSuccess;
}

template <typename Bytes>
std::size_t length(Bytes bytes) {
  return static_cast<std::size_t>(bytes < 0 ? 0 : bytes);
}

int isend_v6(void* comm, void* data, int size, int /*tag*/, void* /*region*/, void** request) {
  return isend(comm, data, length(static_cast<long>(size)), request);
}

int isend_v9(void* comm, void* data, std::size_t size, int /*tag*/, void* /*region*/,
             void** request) {
  return isend(comm, data, size, request);
}

int isend_v10(void* comm, void* data, std::size_t size, int /*tag*/, void* /*region*/,
              void* /*parent*/, void** request) {
  return isend(comm, data, size, request);
}

int irecv_v6(void* comm, int count, void** data, int* sizes, int* /*tags*/, void** /*regions*/,
             void** request) {
  return irecv(comm, count, data, length(static_cast<long>(sizes[0])), request);
}

int irecv_v9(void* comm, int count, void** data, std::size_t* sizes, int* /*tags*/,
             void** /*regions*/, void** request) {
  return irecv(comm, count, data, sizes[0], request);
}

int irecv_v10(void* comm, int count, void** data, std::size_t* sizes, int* /*tags*/,
              void** /*regions*/, void** /*parents*/, void** request) {
  return irecv(comm, count, data, sizes[0], request);
}

int iflush_any(void* /*comm*/, int /*count*/, void** /*data*/, int* /*sizes*/, void** /*regions*/,
               void** request) {
  return iflush(request);
}

// NOLINTEND(readability-function-size)

}  // namespace

// NCCL looks for these names.
// NOLINTBEGIN(readability-identifier-naming)
#define ISTHMUS_TABLE extern "C" __attribute__((visibility("default"))) const

ISTHMUS_TABLE NetV6 ncclNetPlugin_v6 = {
    kName,          init_plain<6>, devices,    properties<PropertiesV6>,
    listen,         connect_v6,    accept_v6,  reg_mr_any<int>,
    reg_mr_dma_buf, dereg_mr,      isend_v6,   irecv_v6,
    iflush_any,     test,          close_send, close_recv,
    close_listen};

ISTHMUS_TABLE NetV7 ncclNetPlugin_v7 = {
    kName,          init_plain<7>, devices,    properties<PropertiesV7>,
    listen,         connect_v7,    accept,     reg_mr_any<int>,
    reg_mr_dma_buf, dereg_mr,      isend_v6,   irecv_v6,
    iflush_any,     test,          close_send, close_recv,
    close_listen,   nullptr,       nullptr};

ISTHMUS_TABLE NetV8 ncclNetPlugin_v8 = {
    kName,          init_plain<8>, devices,    properties<PropertiesV8>,
    listen,         connect_v7,    accept,     reg_mr_any<std::size_t>,
    reg_mr_dma_buf, dereg_mr,      isend_v6,   irecv_v6,
    iflush_any,     test,          close_send, close_recv,
    close_listen,   nullptr,       nullptr};

ISTHMUS_TABLE NetV9 ncclNetPlugin_v9 = {
    kName,          init_plain<9>, devices,    properties<PropertiesV9>,
    listen,         connect_v7,    accept,     reg_mr_any<std::size_t>,
    reg_mr_dma_buf, dereg_mr,      isend_v9,   irecv_v9,
    iflush_any,     test,          close_send, close_recv,
    close_listen,   nullptr,       nullptr,    nullptr};

ISTHMUS_TABLE NetV10 ncclNetPlugin_v10 = {
    kName,          init_v10,    devices,    properties<PropertiesV9>,
    listen,         connect_v10, accept,     reg_mr_any<std::size_t>,
    reg_mr_dma_buf, dereg_mr,    isend_v10,  irecv_v10,
    iflush_any,     test,        close_send, close_recv,
    close_listen,   nullptr,     nullptr,    nullptr};

ISTHMUS_TABLE NetV11 ncclNetPlugin_v11 = {kName,
                                          init_v11,
                                          devices,
                                          properties<PropertiesV11>,
                                          listen_context,
                                          connect_v11,
                                          accept,
                                          reg_mr_any<std::size_t>,
                                          reg_mr_dma_buf,
                                          dereg_mr,
                                          isend_v10,
                                          irecv_v10,
                                          iflush_any,
                                          test,
                                          close_send,
                                          close_recv,
                                          close_listen,
                                          nullptr,
                                          nullptr,
                                          nullptr,
                                          finalize_context,
                                          set_attributes};

ISTHMUS_TABLE NetV12 ncclNetPlugin_v12 = {kName,
                                          init_v12,
                                          devices,
                                          properties<PropertiesV12>,
                                          listen_context,
                                          connect_v11,
                                          accept,
                                          reg_mr_any<std::size_t>,
                                          reg_mr_dma_buf,
                                          dereg_mr,
                                          isend_v10,
                                          irecv_v10,
                                          iflush_any,
                                          test,
                                          close_send,
                                          close_recv,
                                          close_listen,
                                          nullptr,
                                          nullptr,
                                          nullptr,
                                          finalize_context,
                                          set_attributes};

// NOLINTEND(readability-identifier-naming)

}  // namespace isthmus::nccl::shims
