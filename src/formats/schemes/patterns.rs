//! The regular expressions that configurations name layers with, as far as they are plain.

use std::cell::Cell;

/// Steps after which a match is given up: a pattern of many stars takes long to fail.
const STEPS: u32 = 10_000;
/// Longest pattern that is looked at, in bytes.
const LENGTH: usize = 1000;
/// Steps that all matches of a container may take together.
pub(super) const ALL_STEPS: u32 = 50_000_000;

/// One character of a pattern, and how often it may come.
struct Piece {
    set: Set,
    least: bool,
    many: bool,
}

enum Set {
    Any,
    Digit,
    One(char),
    Among(Vec<(char, char)>, bool),
}

impl Set {
    fn holds(&self, c: char) -> bool {
        match self {
            Self::Any => true,
            Self::Digit => c.is_ascii_digit(),
            Self::One(one) => *one == c,
            Self::Among(ranges, inside) => ranges.iter().any(|(from, to)| (*from..=*to).contains(&c)) == *inside,
        }
    }
}

/// Whether a pattern matches the start of `text`, as Python's `re.match`; `None` if it holds something that is not understood here (groups, counts,
/// alternatives), or takes too long. What it takes is taken from `left`.
pub(super) fn matches(pattern: &str, text: &str, left: &Cell<u32>) -> Option<bool> {
    if pattern.len() > LENGTH {
        return None;
    }
    // Reading the pattern counts as well.
    left.set(left.get().checked_sub(u32::try_from(pattern.len()).ok()?)?);
    let (pieces, to_end) = parse(pattern)?;
    let text: Vec<char> = text.chars().collect();
    let mut steps = STEPS.min(left.get());
    let before = steps;
    let found = walk(&pieces, to_end, &text, &mut steps);
    left.set(left.get().saturating_sub(before.saturating_sub(steps)));
    found
}

/// The pieces, and whether the match must reach the end.
fn parse(pattern: &str) -> Option<(Vec<Piece>, bool)> {
    let mut pieces = Vec::new();
    let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
    let mut rest = pattern.chars().peekable();
    while let Some(c) = rest.next() {
        let set = match c {
            '$' if rest.peek().is_none() => return Some((pieces, true)),
            '(' | ')' | '{' | '}' | '|' | '^' | '$' | '*' | '+' | '?' | ']' => return None,
            '.' => Set::Any,
            '\\' => match rest.next()? {
                'd' => Set::Digit,
                escaped if escaped.is_ascii_alphanumeric() => return None,
                escaped => Set::One(escaped),
            },
            '[' => {
                let inside = rest.next_if_eq(&'^').is_none();
                let mut ranges = Vec::new();
                loop {
                    match rest.next()? {
                        ']' if !ranges.is_empty() => break,
                        '\\' | '[' | ']' => return None,
                        from => {
                            let to = if rest.next_if_eq(&'-').is_some() { rest.next().filter(|to| *to != ']' && *to != '\\')? } else { from };
                            ranges.push((from, to));
                        }
                    }
                }
                Set::Among(ranges, inside)
            }
            plain => Set::One(plain),
        };
        let (least, many) = match rest.next_if(|c| matches!(c, '*' | '+' | '?')) {
            Some('*') => (false, true),
            Some('+') => (true, true),
            Some(_) => (false, false),
            None => (true, false),
        };
        // Whether a match is the longest or the shortest makes no difference to whether there is one.
        let _lazy = rest.next_if_eq(&'?').is_some();
        pieces.push(Piece { set, least, many });
    }
    Some((pieces, false))
}

fn walk(pieces: &[Piece], to_end: bool, text: &[char], steps: &mut u32) -> Option<bool> {
    *steps = steps.checked_sub(1)?;
    let Some((piece, others)) = pieces.split_first() else { return Some(!to_end || text.is_empty()) };
    if !piece.least && walk(others, to_end, text, steps)? {
        return Some(true);
    }
    let mut rest = text;
    while let Some((c, after)) = rest.split_first() {
        if !piece.set.holds(*c) {
            return Some(false);
        }
        rest = after;
        if walk(others, to_end, rest, steps)? {
            return Some(true);
        }
        if !piece.many {
            return Some(false);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::{ALL_STEPS, Cell, matches};

    #[test]
    fn plain_patterns_match_as_in_python() {
        let left = Cell::new(ALL_STEPS);
        for (pattern, text, expected) in [
            (r".*\.18\..*gate.*", "model.layers.18.mlp.gate_proj", Some(true)),
            (r".*\.18\..*gate.*", "model.layers.8.mlp.gate_proj", Some(false)),
            (r"model\.layers\.[0-3]\.", "model.layers.2.mlp", Some(true)),
            (r"model\.layers\.[0-3]\.", "model.layers.4.mlp", Some(false)),
            (r"model\.layers\.[^4]+$", "model.layers.4", Some(false)),
            (r"^lm_head$", "lm_head", Some(true)),
            (r"^lm_head$", "lm_head.x", Some(false)),
            (r"layers\.\d+\.a?b", "layers.12.b", Some(true)),
            ("b", "ab", Some(false)),
            (r".*(gate|up).*", "gate", None),
            (r"a{2}", "aa", None),
            (r"\w+", "aa", None),
        ] {
            assert_eq!(matches(pattern, text, &left), expected, "{pattern} on {text}");
        }
        let long = "a".repeat(3000);
        assert_eq!(matches("a", "a", &Cell::new(0)), None);
        assert_eq!(matches(".*a.*a.*a.*a.*b", &long, &left), None);
    }
}
