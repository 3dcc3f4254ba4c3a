//! .npy headers, byte for byte as `np.save` writes them (numpy/lib/_format_impl.py, 2.4).

use crate::catalog::Order;

/// NumPy keeps room for the first dimension (the last one in Fortran order) to grow to this many digits.
const GROWTH_DIGITS: usize = 21;

/// The header for an array of this type, order and shape; `descr` is NumPy's own text, a quoted string or a list.
pub fn header(descr: &str, order: Order, shape: &[u64]) -> Vec<u8> {
    let tuple = match shape {
        [one] => format!("({one},)"),
        _ => format!("({})", shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
    };
    let descr = if descr.starts_with('[') || descr.starts_with('(') { descr.to_string() } else { format!("'{descr}'") };
    let (fortran, growing) = match order {
        Order::C => ("False", shape.first()),
        Order::F => ("True", shape.last()),
    };
    let mut text = format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {tuple}, }}");
    if let Some(growing) = growing {
        text.extend(std::iter::repeat_n(' ', GROWTH_DIGITS.saturating_sub(growing.to_string().len())));
    }
    // Version 1 and 2 are Latin-1, version 3 is UTF-8.
    let latin: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
    let (text, version) = match latin {
        Some(latin) if padded(latin.len(), 2) <= usize::from(u16::MAX) => (latin, 1),
        Some(latin) => (latin, 2),
        None => (text.into_bytes(), 3),
    };
    let length_bytes = if version == 1 { 2 } else { 4 };
    let len = padded(text.len(), length_bytes);
    let mut out = Vec::with_capacity(len.saturating_add(12));
    out.extend_from_slice(b"\x93NUMPY");
    out.extend([version, 0]);
    out.extend((len as u32).to_le_bytes().iter().take(length_bytes));
    out.extend_from_slice(&text);
    out.extend(std::iter::repeat_n(b' ', len.saturating_sub(text.len()).saturating_sub(1)));
    out.push(b'\n');
    out
}

/// The length of the text, padded so that the data starts at a multiple of 64 bytes; a newline ends it.
fn padded(text: usize, length_bytes: usize) -> usize {
    let lead = length_bytes.saturating_add(8);
    // At least one space, even where the newline would end at such a multiple.
    text.saturating_add(lead).saturating_add(2).next_multiple_of(64).saturating_sub(lead)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "in a test, a panic is the report of a failure")]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::unwrap_used, reason = "a test")]
    fn is_what_numpy_writes() {
        // np.save(f, np.zeros((3, 4), '<f4')) and friends, NumPy 2.4.
        let header_of = |descr, order, shape: &[u64]| String::from_utf8(header(descr, order, shape)[10..].to_vec()).unwrap();
        assert_eq!(header("<f4", Order::C, &[3, 4]).len(), 128);
        assert_eq!(&header("<f4", Order::C, &[3, 4])[..10], b"\x93NUMPY\x01\x00\x76\x00");
        assert_eq!(header_of("<f4", Order::C, &[3, 4]), format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }"));
        assert!(header_of("|b1", Order::C, &[]).starts_with("{'descr': '|b1', 'fortran_order': False, 'shape': (), } "));
        assert!(header_of("<i8", Order::F, &[5, 2]).starts_with("{'descr': '<i8', 'fortran_order': True, 'shape': (5, 2), }"));
        assert!(header_of("[('a', '<f4')]", Order::C, &[7]).starts_with("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (7,), }"));
    }

    #[test]
    fn very_long_and_non_latin_headers_use_the_later_versions() {
        assert_eq!(header("[('漢', '<f4')]", Order::C, &[1])[6], 3);
        let long = format!("[{}]", vec!["('abcdefgh', '<f4')"; 4000].join(", "));
        let bytes = header(&long, Order::C, &[1]);
        assert_eq!((bytes[6], bytes.len() % 64), (2, 0));
    }
}
