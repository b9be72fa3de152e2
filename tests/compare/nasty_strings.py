"""Strings that tokenizers get wrong, the same for the same seed."""
import random
import sys
import unicodedata

CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
              "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"]
WORDS = """the of and Hello world I'm don't CAN'T we'LL it's naïve café Straße ÅNGSTRÖM ﬁne ǅ ſt
    def return x+=1; a[i]->b::c() {"k":[1,2.50,-3e9]} <div class="x"> https://a.b/c?d=e&f#g 0x1F
    你好世界 人工智能 日本語テスト カタカナ ﾊﾝｶｸ 한국어 각 العربية שלום हिन्दी ไทย ภาษา Ελληνικά привет мир
    1234567890 12345 1,234.56 ١٢٣ ५६ ½ Ⅷ ²³ ___ --- ... !!! ??? ¿¡ “quoted” ‘x’ – — …""".split()
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "❤️", "1️⃣", "\U0001FAE0", "☕"]
MARKS = ["\u0301", "\u0308", "\u0323", "\u0307", "\u0345", "\u093c", "\u3099", "\u20e3", "\ufe0f",
         "\u0344", "\u0327", "\u0338", "\u1161", "\u11a8"]
BASES = list("aeiouAEIOUnsSKy") + ["ά", "ᾳ", "ι", "क", "か", "ハ", "ᄀ", "가", "Å", "Ω", "q", "̈", "ẛ"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n ", "\u00a0", "\u3000", "\u2003",
          "\u2028", "\u0085", "\u180e", "\u200b", "\ufeff", "\u2000", "\x0b", "\x0c", "\x1c"]


def by_category():
    table = {name: [] for name in CATEGORIES}
    for code in range(0x110000):
        name = unicodedata.category(chr(code))
        if name in table:
            table[name].append(chr(code))
    return table


def nasty_strings(seed, count, specials):
    """`count` strings; `specials` are the tokenizer's added tokens."""
    rng = random.Random(seed)
    chars = by_category()
    specials = list(specials) or ["<s>"]

    def atom():
        kind = rng.randrange(14)
        if kind == 0:
            return "".join(rng.choice(chars[rng.choice(CATEGORIES)])
                           for _ in range(rng.randint(1, 6)))
        if kind == 1:
            return rng.choice(EMOJI) * rng.choice([1, 1, 2, 5])
        if kind == 2:
            return rng.choice(BASES) + "".join(rng.choice(MARKS)
                                               for _ in range(rng.randint(1, 4)))
        if kind == 3:
            return "".join(str(rng.randrange(10)) for _ in range(rng.randint(1, 14)))
        if kind == 4:
            return " " * rng.choice([1, 2, 3, 4, 7, 8, 15, 16, 33])
        if kind in (5, 6):
            return rng.choice(SPACES)
        if kind == 7:
            token = rng.choice(specials)
            return rng.choice([token, token, token[:-1], token[1:], token.upper(),
                               " " + token + " ", token + token, token.replace("|", "||")])
        if kind == 8:
            return rng.choice(["▁", "Ġ", "Ċ", "<0x0A>", "<0xE2>", "##", "</w>", "Ā", "\u2581\u2581"])
        if kind == 9:
            return rng.choice("aAéß中🙂.-'\"_") * rng.choice([2, 3, 5, 20, 70])
        if kind == 10:
            return chr(rng.randrange(0x20))
        return rng.choice(WORDS) + rng.choice(["", " ", " ", " "])

    strings = ["", " ", "\n", "a", "▁", "\u0301", "\0"]
    while len(strings) < count:
        strings.append("".join(atom() for _ in range(rng.choice([1, 1, 2, 3, 5, 8, 20]))))
    return strings[:count]


if __name__ == "__main__":
    for text in nasty_strings(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]):
        print(repr(text))
