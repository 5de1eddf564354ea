#pragma once

#include <string>
#include <vector>

namespace isthmus::net_plugin {

// A rule of NCCL's that a plug-in keeps or breaks. run() is called in a process of its own, with
// the path of the plug-in and a version; it returns an empty text, or what is wrong. "skip: ..."
// says why the rule does not apply.
struct Check {
  const char* name;
  const char* rule;
  int limit_s;
  std::string (*run)(const std::string& path, int version);
};

const std::vector<Check>& checks();

struct Verdict {
  std::string check;
  int version = 0;
  bool passed = false;
  bool skipped = false;
  std::string text;  // what is wrong, or why it was skipped
};

// Runs one in a child: a crash, a hang or an exit is a verdict as well.
Verdict judge(const Check& check, const std::string& path, int version);

}  // namespace isthmus::net_plugin
