// The torch extension module: the only translation unit that is compiled against torch, once per
// minor version of it.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include "plugins/torch/backend.h"
#include "plugins/torch/contributions.h"
#include "plugins/torch/flight_recorder.h"
#include "plugins/torch/group_memory.h"
#include "plugins/torch/options.h"
#include "plugins/torch/store.h"
#include "plugins/torch/worlds.h"

namespace isthmus::plugin {
namespace {

c10::intrusive_ptr<BackendIsthmus> create(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                          int size, milliseconds timeout, std::string name,
                                          const std::vector<std::int64_t>& world_ranks,
                                          std::int64_t restart, const std::string& priority) {
  GroupRequest request;
  request.priority = priority_of(priority);
  request.rank = rank;
  request.size = size;
  request.restart = restart;
  request.timeout_ms = timeout.count();
  request.name = std::move(name);
  request.world_ranks.assign(world_ranks.begin(), world_ranks.end());
  return BackendIsthmus::create(store, request);
}

// Refuses a torch that this file was not compiled for: nothing of torch's C++ interface is stable.
void check_torch_version() {
  const auto version = py::module_::import("torch").attr("__version__").cast<std::string>();
  const std::string built = c10::str(TORCH_VERSION_MAJOR, ".", TORCH_VERSION_MINOR, ".");
  if (version.compare(0, built.size(), built) != 0) {
    throw py::import_error(c10::str("This part of isthmus was built for torch ", built,
                                    "x and cannot run with torch ", version,
                                    ": reinstall isthmus beside it."));
  }
}

// torch.distributed.checkpoint.async_save() communicates in a thread of its own, and that on the
// group that the program trains with, so that the thread needs an order of its own.
std::uint32_t tag_of_new_thread() {
  if (PyGILState_GetThisThreadState() == nullptr) {
    return 0;  // no thread of Python's
  }
  const py::gil_scoped_acquire gil;
  try {
    const auto thread = py::module_::import("threading").attr("current_thread")();
    const auto name = thread.attr("name").cast<std::string>();
    return name.starts_with("AsyncCheckpointExecutor") ? kCheckpointTag : 0;
  } catch (const py::error_already_set&) {
    return 0;
  }
}

WorkPtr reduce_contributions(BackendIsthmus& backend, const at::Tensor& output,
                             const Tensors& contributions, const c10d::AllreduceOptions& options) {
  return all_reduce_contributions(backend.issuer(), output, contributions, options);
}

WorkPtr reduce_to_shards(BackendIsthmus& backend, const at::Tensor& output, const at::Tensor& input,
                         std::uint32_t shards, const c10d::ReduceScatterOptions& options,
                         const std::optional<std::string>& priority) {
  return reduce_shards(backend.issuer(), output, input, shards, options,
                       priority ? std::make_optional(priority_of(*priority)) : std::nullopt);
}

void bind_options(py::module_& module) {
  py::class_<Options, c10::intrusive_ptr<Options>, c10d::Backend::Options>(module, "Options")
      .def(py::init([](milliseconds timeout, const std::string& priority) {
             auto options = c10::make_intrusive<Options>(timeout);
             options->priority = priority_of(priority);
             return options;
           }),
           py::arg("timeout") = kBackendDefaultTimeout, py::arg("priority") = "normal")
      .def_property(
          "priority", [](const Options& self) { return priority_name(self.priority); },
          [](Options& self, const std::string& name) { self.priority = priority_of(name); })
      // As the options of NCCL's groups have it.
      .def_property(
          "is_high_priority_stream",
          [](const Options& self) { return self.priority == Priority::kUrgent; },
          [](Options& self, bool high) {
            self.priority = high ? Priority::kUrgent : Priority::kNormal;
          })
      .def("__copy__", [](const Options& self) { return c10::make_intrusive<Options>(self); })
      .def("__deepcopy__",
           [](const Options& self, const py::dict&) { return c10::make_intrusive<Options>(self); });
}

// A context manager around a GroupMemoryScope.
void bind_group_memory(py::module_& module) {
  struct Memory {
    c10::intrusive_ptr<BackendIsthmus> backend;
    std::optional<GroupMemoryScope> scope = std::nullopt;
  };

  module.def("adopts_group_memory", [] { return World::allocates_for_models(); });
  py::class_<Memory, std::shared_ptr<Memory>>(module, "GroupMemory")
      .def(py::init([](const c10::intrusive_ptr<BackendIsthmus>& backend) {
             return std::make_shared<Memory>(backend);
           }),
           py::arg("backend"))
      .def("__enter__", [](Memory& self) { self.scope.emplace(self.backend->world()); })
      .def("__exit__", [](Memory& self, const py::args&) { self.scope.reset(); });
}

}  // namespace
}  // namespace isthmus::plugin

PYBIND11_MODULE(ISTHMUS_SHIM_NAME, module) {
  using namespace isthmus::plugin;  // NOLINT(google-build-using-namespace)
  check_torch_version();
  py::module_::import("torch.distributed");  // registers the base classes
  bind_options(module);
  py::class_<BackendIsthmus, c10::intrusive_ptr<BackendIsthmus>, c10d::Backend>(module, "Backend")
      .def_property_readonly("options", &BackendIsthmus::getBackendOptions)
      .def(
          "_set_default_timeout",
          [](BackendIsthmus& self, milliseconds timeout) { self.setTimeout(timeout); },
          py::arg("timeout"), py::call_guard<py::gil_scoped_release>())
      .def(
          "mapped",
          [](const BackendIsthmus& self, const at::Tensor& tensor) {
            return tensor.device().is_cpu() &&
                   self.world().mapped(tensor.data_ptr(), tensor.nbytes());
          },
          py::arg("tensor"))
      .def("all_reduce_contributions", &reduce_contributions, py::arg("output"),
           py::arg("contributions"), py::arg("options"), py::call_guard<py::gil_scoped_release>())
      .def("reduce_shards", &reduce_to_shards, py::arg("output"), py::arg("input"),
           py::arg("shards"), py::arg("options"), py::arg("priority") = py::none(),
           py::call_guard<py::gil_scoped_release>())
      .def(
          "monitored_barrier",
          [](BackendIsthmus& self, milliseconds timeout) {
            c10d::BarrierOptions options;
            options.timeout = timeout;
            self.monitoredBarrier(options, true);
          },
          py::arg("timeout") = c10d::kUnsetTimeout, py::call_guard<py::gil_scoped_release>());
  py::class_<OrderedFuture, std::shared_ptr<OrderedFuture>, torch::jit::PythonFutureWrapper>(
      module, "Future")
      .def("then", &OrderedFuture::then, py::arg("callback"))
      .def("add_done_callback", &OrderedFuture::add_done_callback, py::arg("callback"));
  py::class_<WorkIsthmus, c10::intrusive_ptr<WorkIsthmus>, c10d::Work>(module, "Work")
      .def("get_future", &WorkIsthmus::ordered_future, py::call_guard<py::gil_scoped_release>());
  module.def("create", &create, py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg("timeout"), py::arg("name"), py::arg("world_ranks"), py::arg("restart"),
             py::arg("priority"), py::call_guard<py::gil_scoped_release>());
  module.def(
      "close_all",
      [](const std::string& reason, std::int64_t limit_ms) { close_all(reason, limit_ms); },
      py::arg("reason"), py::arg("limit_ms"), py::call_guard<py::gil_scoped_release>());
  module.def(
      "flight_records",
      [](bool collectives, bool stacks, bool only_active) {
        return py::bytes(
            FlightRecorder::get()->dump(std::nullopt, collectives, stacks, only_active));
      },
      py::arg("collectives"), py::arg("stacks"), py::arg("only_active"));
  module.def(
      "flight_records_json",
      [](bool collectives, bool only_active) {
        return FlightRecorder::get()->dump_json(std::nullopt, collectives, only_active);
      },
      py::arg("collectives"), py::arg("only_active"));

  bind_group_memory(module);
  module.def("flight_recorder_wanted", &flight_recorder_wanted);
  set_tag_finder(&tag_of_new_thread);
  module.def("thread_tag", &thread_tag);
  module.def("set_thread_tag", &set_thread_tag, py::arg("tag"));
  module.attr("torch_version") = TORCH_VERSION;
}
