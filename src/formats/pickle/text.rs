//! Python's ways of writing values: escapes of protocol 0, `repr` of what is a dict's key, integers of any size.

use super::{Graph, Id, Node};

/// Most digits of an integer that Python itself converts to text.
const DIGITS: usize = 4300;
/// Bytes of an integer that has no more digits than that.
const LONG_BYTES: u64 = 1785;
/// How deep a key is written out.
const DEPTH: u32 = 16;

/// The bytes of a string of Python 2 from between its quotes; `None` if an escape is broken.
pub(super) fn string_escape(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'\\' {
            out.push(*byte);
            continue;
        }
        let (escape, after) = rest.split_first()?;
        rest = after;
        match escape {
            b'\n' => {}
            b'\\' | b'\'' | b'"' => out.push(*escape),
            b'a' => out.push(7),
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'v' => out.push(11),
            b'x' => {
                let (digits, after) = rest.split_at_checked(2)?;
                out.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                rest = after;
            }
            b'0'..=b'7' => {
                let mut value = u32::from(*escape & 7);
                while let Some((digit @ b'0'..=b'7', after)) = rest.split_first().filter(|_| value < 0o40) {
                    value = value.wrapping_mul(8).wrapping_add(u32::from(*digit & 7));
                    rest = after;
                }
                out.push(u8::try_from(value & 0xFF).ok()?);
            }
            other => out.extend([b'\\', *other]),
        }
    }
    Some(out)
}

/// A line of `UNICODE` as UTF-8: Latin-1 with `\uXXXX` and `\UXXXXXXXX`.
pub(super) fn raw_unicode_escape(line: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(line.len());
    let mut high = None;
    let mut rest = line;
    while let Some((byte, after)) = rest.split_first() {
        let width = match (byte, after.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => 0,
        };
        let digits = if width == 0 { None } else { after.get(1..).and_then(|digits| digits.split_at_checked(width)) };
        let escape = digits.and_then(|(digits, after)| Some((u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?, after)));
        let (code, after) = escape.unwrap_or((u32::from(*byte), after));
        rest = after;
        // Python 2 on narrow builds writes characters beyond U+FFFF as two halves.
        match (high.take(), code) {
            (None, 0xD800..=0xDBFF) => high = Some(code),
            (Some(first), 0xDC00..=0xDFFF) => {
                let both = 0x10000_u32.wrapping_add((first & 0x3FF) << 10).wrapping_add(code & 0x3FF);
                push_code(&mut out, both);
            }
            (first, code) => {
                if let Some(first) = first {
                    push_code(&mut out, first);
                }
                push_code(&mut out, code);
            }
        }
    }
    if let Some(first) = high {
        push_code(&mut out, first);
    }
    out
}

/// A code point as UTF-8; a lone surrogate as Python's `surrogatepass` has it, which is not UTF-8.
fn push_code(out: &mut Vec<u8>, code: u32) {
    match char::from_u32(code) {
        Some(c) => out.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
        None => out.extend([0xE0 | (code >> 12 & 0xF) as u8, 0x80 | (code >> 6 & 0x3F) as u8, 0x80 | (code & 0x3F) as u8]),
    }
}

/// An integer of a graph in decimal; `None` if it has more digits than Python itself would write.
pub(in crate::formats) fn integer(graph: &Graph, id: Id) -> Option<String> {
    match graph.node(id) {
        Node::Int(value) => Some(value.to_string()),
        Node::Decimal(run) => {
            let digits = graph.bytes(*run, DIGITS as u64).ok().filter(|_| run.len() <= DIGITS as u64)?;
            let (sign, digits) = match digits.strip_prefix(b"-") {
                Some(digits) => ("-", digits),
                None => ("", &digits[..]),
            };
            let start = digits.iter().position(|b| *b != b'0').unwrap_or(digits.len().saturating_sub(1));
            Some(format!("{sign}{}", String::from_utf8_lossy(digits.get(start..)?)))
        }
        Node::Long(run) if run.len() <= LONG_BYTES => Some(decimal(&graph.bytes(*run, LONG_BYTES).ok()?)),
        _ => None,
    }
}

/// The decimal digits of a little-endian two's complement number.
fn decimal(bytes: &[u8]) -> String {
    let negative = bytes.last().is_some_and(|b| *b >= 0x80);
    // Magnitude: the bytes, or their complement plus one.
    let mut carry = negative;
    let mut magnitude: Vec<u8> = Vec::with_capacity(bytes.len().saturating_add(4));
    for byte in bytes {
        let byte = if negative { !byte } else { *byte };
        let (sum, over) = byte.overflowing_add(u8::from(carry));
        carry = over;
        magnitude.push(sum);
    }
    magnitude.push(u8::from(carry));
    let mut limbs: Vec<u32> = magnitude
        .chunks(4)
        .map(|chunk| {
            let mut limb = [0; 4];
            limb.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            u32::from_le_bytes(limb)
        })
        .collect();
    let mut groups = Vec::new();
    while limbs.iter().any(|limb| *limb != 0) {
        let mut rest = 0_u64;
        for limb in limbs.iter_mut().rev() {
            let value = rest << 32 | u64::from(*limb);
            *limb = u32::try_from(value / 1_000_000_000).unwrap_or(0);
            rest = value % 1_000_000_000;
        }
        groups.push(rest);
    }
    let mut text = String::from(if negative { "-" } else { "" });
    match groups.split_last() {
        Some((first, rest)) => {
            text.push_str(&first.to_string());
            rest.iter().rev().for_each(|group| text.push_str(&format!("{group:09}")));
        }
        None => text.push('0'),
    }
    text
}

/// A float as Python's `repr` writes it.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        return if plain.contains('.') { plain } else { format!("{plain}.0") };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// A value as Python's `str` writes it: what a dict's key becomes in a name.
pub(in crate::formats) fn str_of(graph: &Graph, id: Id) -> Vec<u8> {
    match graph.node(id) {
        Node::Text(run) => graph.bytes(*run, crate::limits::NAME_BYTES).map(std::borrow::Cow::into_owned).unwrap_or_default(),
        _ => {
            let mut out = Vec::new();
            repr(graph, id, DEPTH, &mut out);
            out
        }
    }
}

fn repr(graph: &Graph, id: Id, depth: u32, out: &mut Vec<u8>) {
    const MOST: usize = 64 << 10;
    let Some(deeper) = depth.checked_sub(1).filter(|_| out.len() < MOST) else {
        out.extend(b"...");
        return;
    };
    let list = |items: &[Id], open: &str, close: &str, out: &mut Vec<u8>| {
        out.extend(open.as_bytes());
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.extend(b", ");
            }
            repr(graph, *item, deeper, out);
            if out.len() >= MOST {
                break;
            }
        }
        out.extend(close.as_bytes());
    };
    match graph.node(id) {
        Node::None => out.extend(b"None"),
        Node::Bool(value) => out.extend(if *value { b"True".as_slice() } else { b"False" }),
        Node::Int(_) | Node::Long(_) | Node::Decimal(_) => {
            out.extend(integer(graph, id).unwrap_or_else(|| "a large integer".to_string()).as_bytes());
        }
        Node::Float(value) => out.extend(float(*value).as_bytes()),
        Node::Text(run) => match graph.bytes(*run, MOST as u64) {
            Ok(text) => quote(&text, false, out),
            Err(_) => out.extend(b"''"),
        },
        Node::Bytes(run) => {
            out.push(b'b');
            quote(&graph.bytes(*run, 4096).unwrap_or_default(), true, out);
        }
        Node::Tuple(_, 1) => list(graph.tuple(id).unwrap_or_default(), "(", ",)", out),
        Node::Tuple(..) => list(graph.tuple(id).unwrap_or_default(), "(", ")", out),
        Node::List(items) => list(items, "[", "]", out),
        Node::Set(items) if items.is_empty() => out.extend(b"set()"),
        Node::Set(items) => list(items, "{", "}", out),
        Node::Dict(_) => out.extend(b"{...}"),
        Node::Global(_) => {
            let (module, name) = graph.global(id).unwrap_or_default();
            out.extend(if module.is_empty() { name.to_string() } else { format!("{module}.{name}") }.as_bytes());
        }
        Node::Object(_) => {
            let Some(object) = graph.object(id) else { return };
            // Bytes of Python 3 under protocol 2.
            if let Some(("_codecs", "encode", [text, ..])) = graph.call(id)
                && let Some(bytes) = graph.short(*text).and_then(latin1)
            {
                out.push(b'b');
                quote(&bytes, true, out);
                return;
            }
            repr(graph, object.callee, deeper, out);
            list(graph.tuple(object.args).unwrap_or_default(), "(", ")", out);
        }
        Node::Persistent(name) => repr(graph, *name, deeper, out),
    }
}

/// Text that stands for bytes.
pub(in crate::formats) fn latin1(text: &[u8]) -> Option<Vec<u8>> {
    std::str::from_utf8(text).ok()?.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect()
}

/// A string in the quotes and escapes of Python's `repr`.
fn quote(text: &[u8], bytes: bool, out: &mut Vec<u8>) {
    let mark = if text.contains(&b'\'') && !text.contains(&b'"') { b'"' } else { b'\'' };
    out.push(mark);
    for byte in text {
        match byte {
            b'\\' => out.extend(b"\\\\"),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            _ if *byte == mark => out.extend([b'\\', mark]),
            0..=0x1f | 0x7f => out.extend(format!("\\x{byte:02x}").as_bytes()),
            0x80.. if bytes => out.extend(format!("\\x{byte:02x}").as_bytes()),
            _ => out.push(*byte),
        }
    }
    out.push(mark);
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::super::Graph;
    use super::*;
    use crate::source::Source;

    fn written(pickle: &[u8]) -> String {
        let source = Source::from_bytes("p", pickle.to_vec());
        let graph = Graph::read(&source, 0, source.len()).unwrap();
        String::from_utf8(str_of(&graph, graph.root())).unwrap()
    }

    #[test]
    fn keys_are_written_as_python_writes_them() {
        for (pickle, text) in [
            (&b"X\x03\0\0\0tup."[..], "tup"),
            (b"X\x03\0\0\0tupK\x02\x86.", "('tup', 2)"),
            (b"N\x85.", "(None,)"),
            (b"\x88.", "True"),
            (b"X\x04\0\0\0it's\x85.", "(\"it's\",)"),
            (b"C\x02a\xff.", "b'a\\xff'"),
            (b"c_codecs\nencode\nX\x01\0\0\0bX\x06\0\0\0latin1\x86R.", "b'b'"),
            (b"ctorch\nfloat32\n.", "torch.float32"),
            (b"L123456789012345678901234567890L\n.", "123456789012345678901234567890"),
            (b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", "119547037146038801333356"),
            (b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\xff.", "-18446744073709551616"),
        ] {
            assert_eq!(written(pickle), text);
        }
    }

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (value, text) in [
            (1.5, "1.5"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (-0.0, "-0.0"),
            (f64::INFINITY, "inf"),
            (1e100, "1e+100"),
        ] {
            assert_eq!(float(value), text);
        }
    }

    #[test]
    fn escapes() {
        assert_eq!(string_escape(b"a\\n\\x41\\101\\\\\\'\\0b").unwrap(), b"a\nAA\\'\0b");
        assert_eq!(string_escape(b"\\x4"), None);
        assert_eq!(raw_unicode_escape(b"\\u00e9\xe9\\U0001f600\\ud83d\\ude00\\n"), "éé😀😀\\n".as_bytes());
        assert_eq!(raw_unicode_escape(b"\\ud800"), b"\xed\xa0\x80");
    }
}
