#include "eval/judged_program.h"

#include <fmt/format.h>

#include <string_view>

namespace octet::eval {
namespace {

// Both sides' messages: eight bytes of length, then a pickle.
constexpr std::string_view kMessages = R"(
import os as _os, pickle as _pickle
def _take(count):
    parts = bytearray()
    while len(parts) < count:
        part = _os.read(4, min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError('the other program has ended')
        parts += part
    return bytes(parts)
def _receive():
    return _take(int.from_bytes(_take(8), 'little'))
def _send(data):
    data = len(data).to_bytes(8, 'little') + data
    while data:
        data = data[_os.write(5, data):]
)";

constexpr std::string_view kChecker = R"(
import builtins as _builtins, io as _io
_plain = {'builtins': 'bool bytearray bytes complex dict float frozenset int list range set slice str tuple',
          'collections': 'Counter OrderedDict defaultdict deque',
          'datetime': 'date datetime time timedelta', 'decimal': 'Decimal', 'fractions': 'Fraction'}
class _Plain(_pickle.Unpickler):
    def find_class(self, module, name):
        if name in _plain.get(module, '').split():
            return super().find_class(module, name)
        raise _pickle.UnpicklingError(f'{module}.{name} is no plain value')
def _ask(*args, **named):
    _send(_pickle.dumps((args, named), 4))
    raised, value = _Plain(_io.BytesIO(_receive())).load()
    if raised is None:
        return value
    known = getattr(_builtins, str(raised), None)
    if not (isinstance(known, type) and issubclass(known, Exception)):
        known = RuntimeError
    raise known(str(value))
def _compiled(source):
    for end in ('', '\n    pass\n'):
        try:
            return compile(source + end, 'known', 'exec')
        except SyntaxError:
            pass
    return ''
)";

// The model's source runs in a namespace of its own, so that names of ours are not its.
constexpr std::string_view kSubject = R"(
def _serve(function):
    while True:
        try:
            args, named = _pickle.loads(_receive())
        except EOFError:
            return
        try:
            reply = (None, function(*args, **named))
        except Exception as error:
            reply = (type(error).__name__, str(error))
        try:
            data = _pickle.dumps(reply, 4)
        except Exception as error:
            data = _pickle.dumps(('TypeError', f'the answer is no plain value: {error}'), 4)
        _send(data)
)";

// Any text as a Python expression.
std::string literal(std::string_view text) {
  std::string hex;
  for (const char c : text) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return fmt::format("bytes.fromhex('{}').decode()", hex);
}

}  // namespace

std::string checker_source(const JudgedProgram& p) {
  return fmt::format("{}{}exec(_compiled({}))\n{} = _ask\n{}\n", kMessages, kChecker,
                     literal(p.known), p.entry, p.test);
}

std::string subject_source(const JudgedProgram& p) {
  return fmt::format(
      "{}{}_space = {{'__name__': '__main__'}}\n"
      "exec(compile({}, 'answer', 'exec'), _space)\n_serve(_space[{}])\n",
      kMessages, kSubject, literal(p.answer), literal(p.entry));
}

}  // namespace octet::eval
