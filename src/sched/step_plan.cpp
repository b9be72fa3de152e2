#include "sched/step_plan.h"

namespace octet::sched {

int32_t StepPlan::num_tokens() const {
  int32_t sum = 0;
  for (const Slice& slice : slices) sum += slice.count;
  return sum;
}

}  // namespace octet::sched
