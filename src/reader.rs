//! A forward reader over a source that never panics and never holds more than a window of it.
//!
//! Headers are read through it with pread in windows of 256 KiB bytes; every length is compared with the bytes that are left before it is believed.

use std::io;

pub use crate::dtype::Endian;
use crate::source::Source;

/// Bytes fetched at a time, unless the caller knows better.
const WINDOW: u64 = 256 << 10;

/// Why a field could not be read.
#[derive(Debug)]
pub enum Stop {
    /// The field needs this many bytes and fewer are left.
    End {
        /// Bytes asked for.
        needed: u64,
        /// Bytes left.
        left: u64,
    },
    /// The operating system refused.
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

/// Reads fields one after the other from `position` to `end` of a source.
pub struct Reader<'a> {
    source: &'a Source,
    window: Vec<u8>,
    window_start: u64,
    /// Bytes fetched at a time.
    window_bytes: u64,
    position: u64,
    end: u64,
    /// Byte order of the fields.
    pub endian: Endian,
}

macro_rules! integers {
    ($($name:ident $type:ty;)*) => {$(
        /// The next field as an integer.
        pub fn $name(&mut self) -> Result<$type, Stop> {
            let endian = self.endian;
            let bytes = self.array()?;
            Ok(match endian {
                Endian::Little => <$type>::from_le_bytes(bytes),
                Endian::Big => <$type>::from_be_bytes(bytes),
            })
        }
    )*};
}

impl<'a> Reader<'a> {
    /// A reader of the bytes from `start` to `end` (clamped to the source).
    pub fn new(source: &'a Source, start: u64, end: u64) -> Self {
        let end = end.min(source.len());
        Self { source, window: Vec::new(), window_start: start, window_bytes: WINDOW, position: start.min(end), end, endian: Endian::Little }
    }

    /// The same reader with smaller windows, for headers that are spread over a file between payloads that are passed over.
    #[must_use]
    pub fn with_window(mut self, bytes: u64) -> Self {
        self.window_bytes = bytes.max(1);
        self
    }

    /// Goes to an offset from the start of the source; one after the end is the end.
    pub fn seek(&mut self, position: u64) {
        self.position = position.min(self.end);
    }

    /// Offset of the next byte from the start of the source.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes left.
    pub fn left(&self) -> u64 {
        self.end.saturating_sub(self.position)
    }

    /// Passes over `n` bytes.
    pub fn skip(&mut self, n: u64) -> Result<(), Stop> {
        let left = self.left();
        if n > left {
            return Err(Stop::End { needed: n, left });
        }
        self.position = self.position.saturating_add(n);
        Ok(())
    }

    /// The next `n` bytes; the caller bounds `n`.
    pub fn take(&mut self, n: usize) -> Result<&[u8], Stop> {
        let (needed, left) = (n as u64, self.left());
        if needed > left {
            return Err(Stop::End { needed, left });
        }
        let inside = self.position.checked_sub(self.window_start).and_then(|start| usize::try_from(start).ok());
        let at = match inside {
            Some(at) if at.checked_add(n).is_some_and(|end| end <= self.window.len()) => at,
            _ => {
                let size = usize::try_from(needed.max(self.window_bytes).min(left)).unwrap_or(n);
                self.window.resize(size, 0);
                self.window_start = self.position;
                if let Err(e) = self.source.read_at(self.position, &mut self.window) {
                    self.window.clear();
                    return Err(e.into());
                }
                0
            }
        };
        self.position = self.position.saturating_add(needed);
        let end = at.saturating_add(n);
        self.window.get(at..end).ok_or(Stop::End { needed, left })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    integers! { u8 u8; u16 u16; u32 u32; u64 u64; }
}

/// Reads at any offsets, for headers that are spread over a file: those that lie close to each other share one pread.
pub struct Nearby<'a> {
    source: &'a Source,
    window: Vec<u8>,
    start: u64,
}

impl<'a> Nearby<'a> {
    /// Bytes fetched where nothing is known of the neighbourhood: a header and what stands behind it.
    const ALONE: u64 = 4 << 10;
    /// Bytes fetched where the read before was no further away than this.
    const CLOSE: u64 = 64 << 10;

    /// A reader of a source of which nothing was read.
    pub fn new(source: &'a Source) -> Self {
        Self { source, window: Vec::new(), start: 0 }
    }

    /// The source that is read.
    pub fn source(&self) -> &'a Source {
        self.source
    }

    /// Fills `out` with the bytes at `offset`.
    ///
    /// # Errors
    /// The bytes are not there.
    pub fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if let Some(bytes) = self.held(offset, out.len()) {
            out.copy_from_slice(bytes);
            return Ok(());
        }
        let end = self.start.saturating_add(self.window.len() as u64);
        let close = !self.window.is_empty() && (self.start..end.saturating_add(Self::CLOSE)).contains(&offset);
        let wanted = if close { Self::CLOSE } else { Self::ALONE };
        let size = usize::try_from(wanted.min(self.source.len().saturating_sub(offset))).unwrap_or(0);
        if size > out.len() {
            self.window.resize(size, 0);
            self.start = offset;
            if self.source.read_at(offset, &mut self.window).is_ok() {
                out.copy_from_slice(self.held(offset, out.len()).unwrap_or_default());
                return Ok(());
            }
            self.window.clear();
        }
        // Large, or at the end, or so that the error is of these bytes and no others.
        self.source.read_at(offset, out)
    }

    fn held(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let at = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.window.get(at..at.checked_add(len)?)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use super::*;

    #[test]
    fn reads_near_each_other_and_far_away() {
        let bytes: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        let source = Source::from_bytes("s", bytes.clone());
        let mut nearby = Nearby::new(&source);
        for (offset, len) in
            [(0, 30), (30, 10), (4095, 2), (4097, 70_000), (200_000, 1), (100, 5), (299_999, 1), (299_990, 10), (0, 0), (300_000, 0), (65, 4096)]
        {
            let mut out = vec![0; len];
            nearby.read_at(offset as u64, &mut out).unwrap();
            assert_eq!(out, bytes[offset..offset + len], "{offset} {len}");
        }
        assert!(nearby.read_at(299_999, &mut [0; 2]).is_err());
        assert!(nearby.read_at(u64::MAX, &mut [0]).is_err());
    }
}
