//! The library's error: who is to blame, which file, what was found, what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The library's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Who is to blame for an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The file breaks its own format.
    Format,
    /// The file is sound, but this program does not read it.
    Unsupported,
    /// The file asks for more than the limits allow.
    Limit,
    /// The operating system refused.
    Io,
}

/// One failure, told in one sentence that names the file, with an optional hint on its own line.
#[derive(Debug)]
pub struct Error {
    blame: Blame,
    file: Option<PathBuf>,
    message: String,
    hint: Option<String>,
    source: Option<io::Error>,
}

impl Error {
    fn new(blame: Blame, message: impl Into<String>) -> Self {
        Self { blame, file: None, message: message.into(), hint: None, source: None }
    }

    /// The file breaks its own format.
    pub fn format(message: impl Into<String>) -> Self {
        Self::new(Blame::Format, message)
    }

    /// The file is sound, but this program does not read it.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Blame::Unsupported, message)
    }

    /// The file asks for more than the limits allow.
    pub fn limit(message: impl Into<String>) -> Self {
        Self::new(Blame::Limit, message)
    }

    /// The operating system refused; `doing` says what was tried.
    pub fn io(doing: impl Into<String>, source: io::Error) -> Self {
        Self { source: Some(source), ..Self::new(Blame::Io, doing) }
    }

    /// The same error, naming `file` unless it names one already.
    #[must_use]
    pub fn in_file(mut self, file: &Path) -> Self {
        self.file.get_or_insert_with(|| file.to_path_buf());
        self
    }

    /// The same error with a hint on what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same error, with what to do about it if it is that no more files may be open at once.
    #[must_use]
    pub fn hint_for_files(self) -> Self {
        if self.is_for_files() { self.hint("raise the limit with `ulimit -n`: every shard of a model stays open") } else { self }
    }

    /// Whether no more files may be open at once: a failure of the process or the system, and nothing that the file lacks.
    pub fn is_for_files(&self) -> bool {
        let code = self.source.as_ref().and_then(io::Error::raw_os_error);
        matches!(code, Some(libc::EMFILE | libc::ENFILE))
    }

    /// Who is to blame.
    pub fn blame(&self) -> Blame {
        self.blame
    }

    /// The sentence without the file's name and without the hint.
    pub fn message(&self) -> String {
        match &self.source {
            Some(source) => format!("{}: {}", self.message, reason(source)),
            None => self.message.clone(),
        }
    }
}

/// What the operating system said, without Rust's `(os error N)`.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(end) => text.get(..end).unwrap_or(&text).to_string(),
        None => text,
    }
}

/// Text from a file or a path made safe for a terminal: control characters are escaped.
pub fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] }).collect()
}

/// So many of a thing, in words: `1 tensor`, `2 tensors`.
pub fn counted(n: impl Into<u64>, one: &str, many: &str) -> String {
    let n = n.into();
    format!("{n} {}", if n == 1 { one } else { many })
}

/// What an issue says of bytes that are nobody's.
pub(crate) fn left_over(bytes: u64, after: &str, at: u64) -> String {
    format!("{} after {after}, at {at}, {} to nothing", counted(bytes, "byte", "bytes"), if bytes == 1 { "belongs" } else { "belong" })
}

/// Bytes of a name as readable, terminal-safe text in double quotes.
pub fn quoted(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let mut short: String = text.chars().take(120).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("\"{}\"", printable(&short))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}: ", printable(&file.to_string_lossy()))?;
        }
        f.write_str(&self.message())?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}
