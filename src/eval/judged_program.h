// A function that a model wrote, and the test that judges it, as two programs: so that what the
// model wrote shares no memory and no descriptor with what says whether it passed.
//
//   subject   the function's source; answers calls       reads calls from 4, writes answers to 5
//   checker   the test, whose function asks the subject  writes calls to 5, reads answers from 4
//
// What passes between them are plain values (pickle, protocol 4): the checker takes numbers, text,
// containers of them and a few types of the standard library, and nothing whose comparison the
// subject could have written. An exception of the function is raised again in the test, under its
// name where it is a built-in one.
#pragma once

#include <string>

namespace octet::eval {

struct JudgedProgram {
  std::string known;   // what the model was given: helpers that the test may use stand in it
  std::string answer;  // that, and what the model wrote
  std::string entry;   // the function that is judged
  std::string test;    // Python that calls it by its name
};

// Python programs. The checker's ends without an exception if the test does.
std::string checker_source(const JudgedProgram& program);
std::string subject_source(const JudgedProgram& program);

}  // namespace octet::eval
