// The machine's own limits, measured in the run that they are compared with.
#pragma once

#include "engine/engine.h"
#include "tools/bench_report.h"

namespace heddle::tools {

// Requires: a CUDA device is current. What cannot be measured comes back empty, with the reason.
Ceilings measure_ceilings(const DeviceInfo& device);

}  // namespace heddle::tools
