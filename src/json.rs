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
        out.extend_from_slice(&text.as_bytes()[plain..i]);
        match escape {
            Some(escape) => out.extend_from_slice(escape),
            None => put(out, format_args!("\\u{byte:04x}")),
        }
        plain = i + 1;
    }
    out.extend_from_slice(&text.as_bytes()[plain..]);
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
    for group in bytes.chunks(3) {
        let word = group.iter().enumerate().fold(0u32, |word, (i, byte)| word | u32::from(*byte) << (16 - 8 * i));
        for digit in 0..4 {
            let used = digit <= group.len();
            out.push(if used { DIGITS[(word >> (18 - 6 * digit) & 63) as usize] } else { b'=' });
        }
    }
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
