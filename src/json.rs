//! Pieces of JSON text.

use std::io::Write;

/// Writes a string with its quotes.
pub(crate) fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    escaped(out, text);
    out.push(b'"');
}

/// Writes a string's characters without the quotes.
pub(crate) fn escaped(out: &mut Vec<u8>, text: &str) {
    let mut plain = 0;
    for (i, byte) in text.bytes().enumerate() {
        let escape: Option<&[u8]> = match byte {
            b'"' => Some(b"\\\""),
            b'\\' => Some(b"\\\\"),
            b'\n' => Some(b"\\n"),
            b'\r' => Some(b"\\r"),
            b'\t' => Some(b"\\t"),
            0..=0x1f => None,
            _ => continue,
        };
        out.extend_from_slice(text.as_bytes().get(plain..i).unwrap_or_default());
        match escape {
            Some(escape) => out.extend_from_slice(escape),
            None => put(out, format_args!("\\u{byte:04x}")),
        }
        plain = i.saturating_add(1);
    }
    out.extend_from_slice(text.as_bytes().get(plain..).unwrap_or_default());
}

/// Writes bytes as a string, or as `{"base64": "..."}` if they are not UTF-8.
pub(crate) fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => string(out, text),
        Err(_) => {
            out.extend_from_slice(b"{\"base64\": \"");
            base64(out, bytes);
            out.extend_from_slice(b"\"}");
        }
    }
}

/// Writes base64 (RFC 4648, with padding).
pub(crate) fn base64(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |six: u8| DIGITS.get(usize::from(six & 63)).copied().unwrap_or(b'=');
    for group in bytes.chunks(3) {
        let (first, second, third) = (group.first().copied().unwrap_or(0), group.get(1).copied(), group.get(2).copied());
        let middle = second.unwrap_or(0);
        out.push(digit(first >> 2));
        out.push(digit(first << 4 | middle >> 4));
        out.push(second.map_or(b'=', |second| digit(second << 2 | third.unwrap_or(0) >> 6)));
        out.push(third.map_or(b'=', digit));
    }
}

/// What is written, as a string.
pub(crate) fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&mut out);
    String::from_utf8(out).unwrap_or_default()
}

/// Writes formatted text.
pub(crate) fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a Vec cannot fail.
    let _ = out.write_fmt(text);
}

/// Writes a float in the fewest digits that give it back; NaN and infinities as strings.
pub(crate) fn float<T: Into<f64> + Copy + std::fmt::Debug>(out: &mut Vec<u8>, value: T) {
    let wide: f64 = value.into();
    match wide {
        _ if wide.is_nan() => out.extend_from_slice(b"\"NaN\""),
        f64::INFINITY => out.extend_from_slice(b"\"Infinity\""),
        f64::NEG_INFINITY => out.extend_from_slice(b"\"-Infinity\""),
        _ => put(out, format_args!("{value:?}")),
    }
}

/// Writes a list of integers.
pub(crate) fn integers(out: &mut Vec<u8>, numbers: &[u64]) {
    out.push(b'[');
    for (i, number) in numbers.iter().enumerate() {
        put(out, format_args!("{}{number}", if i == 0 { "" } else { ", " }));
    }
    out.push(b']');
}

/// Deepest nesting of JSON that is shown as it stands: as deep as serde_json reads.
const DEPTH: usize = 127;

/// Valid JSON text with its white space as serde_json would write it, compact or indented; order, equal keys and numbers of any size stay as they are. `None` if
/// it is nested too deeply, or holds a string that is no text (half a surrogate pair).
pub(crate) fn reprinted(text: &str, indented: bool) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut depth = 0usize;
    let line = |out: &mut String, depth: usize| {
        if indented {
            out.push('\n');
            out.extend(std::iter::repeat_n("  ", depth));
        }
    };
    let mut rest = text.trim_ascii_start();
    while let Some(c) = rest.chars().next() {
        let mut after = rest.get(c.len_utf8()..)?;
        match c {
            '"' => {
                let mut escaped = false;
                let end = after.bytes().position(|byte| {
                    let ends = byte == b'"' && !escaped;
                    escaped = byte == b'\\' && !escaped;
                    ends
                })?;
                let (inner, behind) = after.split_at_checked(end.checked_add(1)?)?;
                let string: String = serde_json::from_str(rest.get(..inner.len().checked_add(1)?)?).ok()?;
                out.push_str(&serde_json::to_string(&string).ok()?);
                after = behind;
            }
            '{' | '[' => {
                out.push(c);
                let inside = after.trim_ascii_start();
                if let Some(behind) = inside.strip_prefix(['}', ']']) {
                    out.push(if c == '{' { '}' } else { ']' });
                    after = behind;
                } else {
                    depth = depth.checked_add(1).filter(|depth| *depth <= DEPTH)?;
                    line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.checked_sub(1)?;
                line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                line(&mut out, depth);
            }
            ':' => out.push_str(if indented { ": " } else { ":" }),
            _ => out.push(c),
        }
        rest = after.trim_ascii_start();
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::reprinted;

    #[test]
    #[expect(clippy::unwrap_used, reason = "a test")]
    fn is_printed_as_serde_json_does() {
        // Keys in the order into which serde_json sorts them.
        let text = r#" { "a" : [ 1, -25 , [ ] , { } ] ,"b":{"\u00c9\"\\" : null, "\u00e9":true} } "#;
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(reprinted(text, false).unwrap(), value.to_string());
        assert_eq!(reprinted(text, true).unwrap(), serde_json::to_string_pretty(&value).unwrap());
    }

    #[test]
    fn keeps_what_a_map_of_doubles_would_lose() {
        let text = r#"{"z":340282366920938463463374607431768211456,"a":1,"a":1.50}"#;
        assert_eq!(reprinted(text, false).as_deref(), Some(text));
        assert_eq!(reprinted(r#"["\ud800"]"#, false), None);
        assert_eq!(reprinted(&format!("{}{}", "[".repeat(200), "]".repeat(200)), false), None);
    }
}
