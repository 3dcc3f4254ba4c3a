//! The Python literals of an npy header: one dictionary of strings, integers, booleans, tuples and lists, and nothing else.
//!
//! What `ast.literal_eval` reads of these is read, in whatever way a writer spelled it; expressions, calls and every other kind of value are refused. The text
//! is read once from left to right, brackets nest to a limit, and no value takes more memory than a small multiple of its text.

use crate::error::{Error, Result};
use crate::limits;

/// Deepest nesting of brackets: a structure takes two, a list and a tuple.
const BRACKETS: usize = 2 * limits::NESTING;

/// A literal value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::formats) enum Value {
    Text(String),
    Integer(u64),
    Negative,
    Bool(bool),
    Tuple(Vec<Value>),
    List(Vec<Value>),
}

/// The keys and values of a dictionary, in the order in which they stand; a key that is there twice is listed twice.
pub(super) fn dictionary(text: &str) -> Result<Vec<(String, Value)>> {
    let mut parser = Parser { text, at: 0 };
    let mut entries = Vec::new();
    parser.expect(b'{')?;
    loop {
        if parser.next_is(b'}') {
            break;
        }
        let Value::Text(key) = parser.value(0)? else { return Err(parser.refuse("a key that is not a string")) };
        parser.expect(b':')?;
        entries.push((key, parser.value(0)?));
        if !parser.next_is(b',') {
            parser.expect(b'}')?;
            break;
        }
    }
    parser.space();
    match parser.peek() {
        None => Ok(entries),
        Some(_) => Err(parser.refuse("something after the dictionary")),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn step(&mut self, n: usize) {
        self.at = self.at.saturating_add(n).min(self.text.len());
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn refuse(&self, what: &str) -> Error {
        Error::format(format!("its header has {what} at character {}", self.at))
    }

    /// Passes over blanks, line ends and comments.
    fn space(&mut self) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' | 0x0c => self.step(1),
                b'#' => self.step(self.rest().find(['\n', '\r']).unwrap_or(self.text.len())),
                _ => break,
            }
        }
    }

    /// Whether the next token is this one, which is then passed over.
    fn next_is(&mut self, token: u8) -> bool {
        self.space();
        let found = self.peek() == Some(token);
        if found {
            self.step(1);
        }
        found
    }

    fn expect(&mut self, token: u8) -> Result<()> {
        if self.next_is(token) {
            return Ok(());
        }
        let found = match self.rest().chars().next() {
            Some(c) => format!("{:?} instead of {:?}", c, char::from(token)),
            None => format!("its end instead of {:?}", char::from(token)),
        };
        Err(self.refuse(&found))
    }

    fn value(&mut self, depth: usize) -> Result<Value> {
        self.space();
        let bytes = self.rest().as_bytes();
        match bytes {
            [b'\'' | b'"', ..] | [b'u' | b'U', b'\'' | b'"', ..] => self.strings().map(Value::Text),
            [b'0'..=b'9', ..] => self.integer().map(Value::Integer),
            [b'-', ..] => {
                self.step(1);
                self.space();
                Ok(match self.integer()? {
                    0 => Value::Integer(0),
                    _ => Value::Negative,
                })
            }
            [b'(', ..] => {
                let (mut items, comma) = self.items(b')', depth)?;
                match items.pop() {
                    Some(only) if items.is_empty() && !comma => Ok(only), // brackets around one value are not a tuple
                    Some(last) => {
                        items.push(last);
                        Ok(Value::Tuple(items))
                    }
                    None => Ok(Value::Tuple(items)),
                }
            }
            [b'[', ..] => self.items(b']', depth).map(|(items, _)| Value::List(items)),
            _ => self.word(),
        }
    }

    /// The values up to a closing bracket, and whether a comma stands behind the last one.
    fn items(&mut self, close: u8, depth: usize) -> Result<(Vec<Value>, bool)> {
        if depth >= BRACKETS {
            return Err(Error::limit(format!("its header nests more than {BRACKETS} brackets")));
        }
        self.step(1);
        let mut items = Vec::new();
        let mut comma = false;
        while !self.next_is(close) {
            if !items.is_empty() && !comma {
                return Err(self.refuse("no comma between two values"));
            }
            items.push(self.value(depth.saturating_add(1))?);
            comma = self.next_is(b',');
        }
        Ok((items, comma))
    }

    fn word(&mut self) -> Result<Value> {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let value = match rest.get(..end).unwrap_or_default() {
            "True" => Value::Bool(true),
            "False" => Value::Bool(false),
            "" => return Err(self.refuse(&rest.chars().next().map_or("its end".to_string(), |c| format!("{c:?}")))),
            word => return Err(self.refuse(&format!("the word {:?}", word.chars().take(40).collect::<String>()))),
        };
        self.step(end);
        Ok(value)
    }

    /// An integer: decimal, or with `0x`, `0o` or `0b`; Python 2's `L` may follow.
    fn integer(&mut self) -> Result<u64> {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let word = rest.get(..end).unwrap_or_default();
        let lower = word.strip_suffix(['L', 'l']).unwrap_or(word).to_ascii_lowercase();
        let (digits, radix) = match lower.get(..2) {
            Some("0x") => (lower.get(2..), 16),
            Some("0o") => (lower.get(2..), 8),
            Some("0b") => (lower.get(2..), 2),
            _ => (Some(lower.as_str()), 10),
        };
        let digits = digits.unwrap_or_default();
        let leading_zero = radix == 10 && digits.starts_with('0') && digits.bytes().any(|b| b != b'0' && b != b'_');
        let misplaced = digits.ends_with('_') || digits.contains("__") || (radix == 10 && digits.starts_with('_'));
        let number = if leading_zero || misplaced { None } else { u64::from_str_radix(&digits.replace('_', ""), radix).ok() };
        let number = number.ok_or_else(|| self.refuse(&format!("the number {:?}", word.chars().take(40).collect::<String>())))?;
        self.step(end);
        Ok(number)
    }

    /// One string or several that follow each other, which Python joins.
    fn strings(&mut self) -> Result<String> {
        let mut text = String::new();
        loop {
            match self.rest().as_bytes() {
                [b'u' | b'U', b'\'' | b'"', ..] => self.step(1),
                [b'\'' | b'"', ..] => {}
                _ => return Ok(text),
            }
            self.string(&mut text)?;
            self.space();
        }
    }

    /// The string whose opening quote is next, appended to `text`.
    fn string(&mut self, text: &mut String) -> Result<()> {
        let mut chars = self.rest().char_indices();
        let Some((_, quote)) = chars.next() else { return Err(self.refuse("no string")) };
        while let Some((_, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.at = self.text.len().saturating_sub(chars.as_str().len());
                    return Ok(());
                }
                '\n' | '\r' => break,
                '\\' => {
                    let Some((_, escape)) = chars.next() else { break };
                    let digits = match escape {
                        'x' => 2,
                        'u' => 4,
                        'U' => 8,
                        _ => 0,
                    };
                    match escape {
                        '\n' => {}
                        '\\' | '\'' | '"' => text.push(escape),
                        'a' => text.push('\x07'),
                        'b' => text.push('\x08'),
                        'f' => text.push('\x0c'),
                        'n' => text.push('\n'),
                        'r' => text.push('\r'),
                        't' => text.push('\t'),
                        'v' => text.push('\x0b'),
                        'x' | 'u' | 'U' => {
                            let digits: String = chars.by_ref().take(digits).map(|(_, c)| c).collect();
                            let code = u32::from_str_radix(&digits, 16).ok().filter(|_| digits.bytes().all(|b| b.is_ascii_hexdigit()));
                            text.push(code.and_then(char::from_u32).ok_or_else(|| self.refuse("a string with an impossible escape"))?);
                        }
                        '0'..='7' => {
                            let mut code = escape.to_digit(8).unwrap_or(0);
                            for _ in 0..2 {
                                let Some(digit) = chars.as_str().chars().next().and_then(|c| c.to_digit(8)) else { break };
                                code = code.saturating_mul(8).saturating_add(digit);
                                chars.next();
                            }
                            text.push(char::from_u32(code).unwrap_or('\u{fffd}'));
                        }
                        'N' => return Err(self.refuse("a string with a character by name")),
                        other => text.extend(['\\', other]), // as Python does, with a warning
                    }
                }
                c => text.push(c),
            }
        }
        Err(self.refuse("a string without its closing quote"))
    }
}

/// Python's `repr` of a string.
pub(super) fn repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(text.len().saturating_add(2));
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            c if c > '\x7f' && is_printable(c) => out.push(c),
            c => match u32::from(c) {
                code @ 0..=0xff => out.push_str(&format!("\\x{code:02x}")),
                code @ 0x100..=0xffff => out.push_str(&format!("\\u{code:04x}")),
                code => out.push_str(&format!("\\U{code:08x}")),
            },
        }
    }
    out.push(quote);
    out
}

/// Python's `str.isprintable` of a character outside ASCII. Rust's `escape_debug` has the same rule (Unicode's categories Other and Separator) for every
/// character but the first of a string, which it also escapes if it combines.
fn is_printable(c: char) -> bool {
    let pair: String = ['a', c].iter().collect();
    pair.escape_debug().count() == 2
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn one(text: &str) -> Result<Value> {
        dictionary(&format!("{{'k': {text}}}")).map(|mut entries| entries.pop().unwrap().1)
    }

    fn text(text: &str) -> Value {
        Value::Text(text.to_string())
    }

    #[test]
    fn values() {
        let n = Value::Integer;
        for (input, expected) in [
            ("'a'", text("a")),
            ("\"a'b\"", text("a'b")),
            ("u'a'", text("a")),
            ("'a' \"b\" u'c'", text("abc")),
            ("'a'\n'b'", text("ab")),
            (r"'\x41\u00e9\U0001F600\101\0\n\\\'\q'", text("A\u{e9}\u{1F600}A\0\n\\'\\q")),
            ("'é'", text("é")),
            ("12", n(12)),
            ("0x10", n(16)),
            ("0b11", n(3)),
            ("0o17", n(15)),
            ("1_000", n(1000)),
            ("2L", n(2)),
            ("00", n(0)),
            ("-0", n(0)),
            ("-5", Value::Negative),
            ("True", Value::Bool(true)),
            ("()", Value::Tuple(vec![])),
            ("(2)", n(2)),
            ("((2))", n(2)),
            ("(2,)", Value::Tuple(vec![n(2)])),
            ("(2L, 3L)", Value::Tuple(vec![n(2), n(3)])),
            ("(2 # two\n , 3 , )", Value::Tuple(vec![n(2), n(3)])),
            ("[2]", Value::List(vec![n(2)])),
            ("[('}', '{')]", Value::List(vec![Value::Tuple(vec![text("}"), text("{")])])),
        ] {
            assert_eq!(one(input).map_err(|e| e.to_string()), Ok(expected), "{input}");
        }
    }

    #[test]
    fn refused() {
        for input in [
            "1+1",
            "f(1)",
            "None",
            "nan",
            "1.5",
            "b'a'",
            "r'a'",
            "{}",
            "{1: 2}",
            "(,)",
            "(1 2)",
            "(1,,)",
            "[1",
            "(1]",
            "'a",
            "'a\n'",
            "'\\x4'",
            "'\\ud800'",
            "'\\N{DASH}'",
            "07",
            "1__0",
            "0xg",
            "18446744073709551616",
            "",
            "-",
            "- -1",
            "-'a'",
            "x.y",
            "True1",
            "\0",
        ] {
            assert!(one(input).is_err(), "{input}");
        }
        for input in ["", "{", "}", "{}x", "{'a'}", "{'a': 1 'b': 2}", "{,}", "{'a': 1,,}", "{1: 2}", "('a', 1)", "{}\0", "{}}", "{'a': 1}, "] {
            assert!(dictionary(input).is_err(), "{input}");
        }
    }

    #[test]
    fn around_the_dictionary() {
        for input in ["{'a': 1}", " \n\t{'a': 1, }\n", "{\"a\" : 1} # the end", "# first\n{'a':\n1}\t\t", "{u'a': 1}"] {
            assert_eq!(dictionary(input).unwrap(), [("a".to_string(), Value::Integer(1))], "{input}");
        }
        assert_eq!(dictionary("{'a': 1, 'a': 2}").unwrap().len(), 2);
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |n: usize| one(&format!("{}1{}", "[".repeat(n), "]".repeat(n)));
        assert!(nested(BRACKETS).is_ok());
        assert!(nested(BRACKETS + 1).is_err());
        assert!(one(&"(".repeat(1 << 20)).is_err());
    }

    #[test]
    fn repr_is_pythons() {
        for (input, expected) in [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("a\"b'c", "'a\"b\\'c'"),
            ("a\"b", "'a\"b'"),
            ("tab\t\n\r\\", "'tab\\t\\n\\r\\\\'"),
            ("\0\x1f\x7f\u{80}\u{a0}\u{ad}", "'\\x00\\x1f\\x7f\\x80\\xa0\\xad'"),
            ("é漢\u{1F600}", "'é漢\u{1F600}'"),
            ("\u{300}a\u{301}", "'\u{300}a\u{301}'"),
            ("\u{200b}\u{3000}\u{378}\u{e000}", "'\\u200b\\u3000\\u0378\\ue000'"),
            ("\u{E0001}", "'\\U000e0001'"),
        ] {
            assert_eq!(repr(input), expected);
        }
    }
}
