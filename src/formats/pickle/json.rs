//! Values of a pickle as JSON: what is neither a number, a string nor a container is an object with the key `__opaque__`.
//!
//! What is too much or too deep to be written is `{"__opaque__": "left out"}`: in a list in place of everything from there on, in a dict as its last key.
//!
//! An integer of any size that Python itself would write in decimal is a JSON number; a larger one is a string of hexadecimal digits. NaN and infinities are
//! strings, as everywhere in this program's JSON.

use super::text::{integer, str_of};
use super::{Graph, Id, Node, Object};
use crate::json;

/// Deepest nesting that is written.
const DEPTH: u32 = 100;

/// What a value is made of, seen through the calls that make plain containers.
pub(in crate::formats) enum Shape<'g> {
    Leaf,
    Sequence(&'g [Id]),
    /// Keys and values, and the attributes of the dict itself.
    Mapping(&'g [(Id, Id)], Option<Id>),
    Object(&'g Object),
}

/// What a value is made of.
pub(in crate::formats) fn shape(graph: &Graph, id: Id) -> Shape<'_> {
    match graph.node(id) {
        Node::Tuple(..) | Node::List(_) => Shape::Sequence(graph.sequence(id).unwrap_or_default()),
        Node::Set(items) => Shape::Sequence(items),
        Node::Dict(pairs) => Shape::Mapping(pairs, None),
        Node::Object(_) => graph.object(id).map_or(Shape::Leaf, |object| called(graph, id, object)),
        _ => Shape::Leaf,
    }
}

/// The name of a module as Python 3 has it.
pub(in crate::formats) fn modern(module: &str) -> &str {
    match module {
        "__builtin__" => "builtins",
        "copy_reg" => "copyreg",
        other => other,
    }
}

fn called<'g>(graph: &'g Graph, id: Id, object: &'g Object) -> Shape<'g> {
    let Some((module, name, args)) = graph.call(id) else { return Shape::Object(object) };
    match (modern(module), name) {
        _ if is_mapping(module, name) => {
            let given = given_pairs(name, args).map(|given| match graph.node(given) {
                Node::Dict(pairs) => pairs.as_slice(),
                _ => graph.given.get(&given).map(Vec::as_slice).unwrap_or_default(),
            });
            match given.filter(|given| !given.is_empty()) {
                None => Shape::Mapping(&object.pairs, object.state),
                Some(given) if object.pairs.is_empty() => Shape::Mapping(given, object.state),
                // Nothing writes both; put together anew whenever it is looked at, it would cost its length each time.
                Some(_) => Shape::Object(object),
            }
        }
        ("builtins", "set" | "frozenset" | "list" | "tuple")
        | ("torch", "Size")
        | ("collections", "deque")
        | ("torch.jit._pickle", "build_intlist" | "build_tensorlist" | "build_doublelist" | "build_boollist" | "build_complexlist") => {
            let given = match args.first().map(|first| graph.node(*first)) {
                Some(Node::Set(items)) => items.as_slice(),
                Some(_) => args.first().and_then(|first| graph.sequence(*first)).unwrap_or_default(),
                None => &[],
            };
            match (given, object.items.as_slice()) {
                (given, []) => Shape::Sequence(given),
                ([], items) => Shape::Sequence(items),
                _ => Shape::Object(object),
            }
        }
        ("torch.jit._pickle", "restore_type_tag") => match args.first().map(|first| (graph.node(*first), *first)) {
            Some((Node::Object(_), _)) | None => Shape::Object(object),
            Some((_, first)) => shape(graph, first),
        },
        _ => Shape::Object(object),
    }
}

/// Whether a call of this makes a dict.
fn is_mapping(module: &str, name: &str) -> bool {
    matches!((modern(module), name), ("collections", "OrderedDict" | "defaultdict" | "Counter") | ("builtins", "dict"))
}

/// What such a call is given to begin with: a dict, or the list of pairs that Python 2 hands an OrderedDict.
fn given_pairs(name: &str, args: &[Id]) -> Option<Id> {
    args.first().filter(|_| name != "defaultdict").copied()
}

/// The sequence of pairs of which a call makes a dict.
pub(super) fn sequence_of_pairs(graph: &Graph, id: Id) -> Option<Id> {
    let (module, name, args) = graph.call(id)?;
    given_pairs(name, args).filter(|given| is_mapping(module, name) && graph.sequence(*given).is_some())
}

/// Writes values as JSON text, within a budget.
pub(in crate::formats) struct Writer<'a> {
    graph: &'a Graph,
    /// Gives the JSON text of values that have a meaning of their own.
    known: &'a dyn Fn(Id) -> Option<String>,
    out: Vec<u8>,
    /// Bytes that may still be written.
    left: usize,
    /// Whether something was left out for its size or depth.
    cut: bool,
}

impl<'a> Writer<'a> {
    pub(in crate::formats) fn new(graph: &'a Graph, budget: usize, known: &'a dyn Fn(Id) -> Option<String>) -> Self {
        Self { graph, known, out: Vec::new(), left: budget, cut: false }
    }

    /// The JSON text of a value, and whether something of it was left out.
    pub(in crate::formats) fn value(mut self, id: Id) -> (Vec<u8>, bool) {
        self.write(id, DEPTH);
        (self.out, self.cut)
    }

    fn put(&mut self, text: &str) {
        self.left = self.left.saturating_sub(text.len());
        self.out.extend_from_slice(text.as_bytes());
    }

    fn leave_out(&mut self) {
        self.cut = true;
        self.put("{\"__opaque__\": \"left out\"}");
    }

    /// Writes what one of the functions of this program's JSON does.
    fn with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.out.len();
        write(&mut self.out);
        self.left = self.left.saturating_sub(self.out.len().saturating_sub(before));
    }

    fn key(&mut self, key: Id) {
        let text = str_of(self.graph, key);
        self.with(|out| json::string(out, &String::from_utf8_lossy(&text)));
        self.put(": ");
    }

    fn write(&mut self, id: Id, depth: u32) {
        let Some(deeper) = depth.checked_sub(1).filter(|_| self.left > 0) else {
            self.leave_out();
            return;
        };
        if let Some(text) = (self.known)(id) {
            self.put(&text);
            return;
        }
        match shape(self.graph, id) {
            Shape::Sequence(items) => self.list(items, deeper),
            Shape::Mapping(pairs, _) => {
                self.put("{");
                self.pairs(pairs, true, deeper);
                self.put("}");
            }
            Shape::Object(object) => self.object(object, deeper),
            Shape::Leaf => self.leaf(id, deeper),
        }
    }

    fn list(&mut self, items: &[Id], depth: u32) {
        self.put("[");
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.put(", ");
            }
            // With nothing left, this writes the mark for what is left out.
            let last = self.left == 0;
            self.write(*item, depth);
            if last {
                break;
            }
        }
        self.put("]");
    }

    fn pairs(&mut self, pairs: &[(Id, Id)], mut first: bool, depth: u32) {
        for (key, value) in pairs {
            if !std::mem::replace(&mut first, false) {
                self.put(", ");
            }
            if self.left == 0 {
                self.cut = true;
                self.put("\"__opaque__\": \"left out\"");
                break;
            }
            self.key(*key);
            self.write(*value, depth);
        }
    }

    /// `{"__opaque__": "module.Class", "args": [...], "state": ...}`, with what there is.
    fn object(&mut self, object: &Object, depth: u32) {
        self.put("{\"__opaque__\": ");
        self.callee(object.callee, depth);
        if let Some(args) = self.graph.tuple(object.args).filter(|args| !args.is_empty()) {
            self.put(", \"args\": ");
            self.list(args, depth);
        }
        for (name, value) in [("kwargs", object.kwargs), ("state", object.state)] {
            if let Some(value) = value {
                self.put(&format!(", \"{name}\": "));
                self.write(value, depth);
            }
        }
        if !object.items.is_empty() {
            self.put(", \"items\": ");
            self.list(&object.items, depth);
        }
        if !object.pairs.is_empty() {
            self.put(", \"pairs\": {");
            self.pairs(&object.pairs, true, depth);
            self.put("}");
        }
        self.put("}");
    }

    fn callee(&mut self, id: Id, depth: u32) {
        match self.graph.global(id) {
            Some((module, name)) => self.with(|out| json::string(out, &dotted(module, name))),
            None => self.write(id, depth),
        }
    }

    fn leaf(&mut self, id: Id, depth: u32) {
        match self.graph.node(id) {
            Node::Bool(value) => self.put(if *value { "true" } else { "false" }),
            Node::Float(value) => self.with(|out| json::float(out, *value)),
            Node::Int(_) | Node::Long(_) | Node::Decimal(_) => match integer(self.graph, id) {
                Some(digits) => self.put(&digits),
                None => self.hexadecimal(id),
            },
            Node::Text(run) | Node::Bytes(run) => {
                if run.len() > self.left as u64 {
                    self.leave_out();
                    return;
                }
                match self.graph.bytes(*run, run.len()) {
                    Ok(bytes) => self.with(|out| json::bytes(out, &bytes)),
                    Err(_) => self.leave_out(),
                }
            }
            Node::Global(_) => {
                self.put("{\"__opaque__\": ");
                self.callee(id, depth);
                self.put("}");
            }
            Node::Persistent(name) => {
                self.put("{\"__opaque__\": ");
                self.write(*name, depth);
                self.put("}");
            }
            _ => self.put("null"),
        }
    }

    /// An integer that is too large to be written in decimal.
    fn hexadecimal(&mut self, id: Id) {
        let bytes = match self.graph.node(id) {
            Node::Long(run) if run.len() <= self.left as u64 / 2 => self.graph.bytes(*run, run.len()).ok(),
            // Digits of protocol 0, as they are.
            Node::Decimal(run) if run.len() <= self.left as u64 => match self.graph.bytes(*run, run.len()) {
                Ok(digits) => {
                    self.with(|out| json::bytes(out, &digits));
                    return;
                }
                Err(_) => None,
            },
            _ => None,
        };
        let Some(bytes) = bytes else { return self.leave_out() };
        let negative = bytes.last().is_some_and(|b| *b >= 0x80);
        let mut carry = negative;
        let mut digits: Vec<u8> = Vec::with_capacity(bytes.len());
        for byte in bytes.iter() {
            let (byte, over) = (if negative { !byte } else { *byte }).overflowing_add(u8::from(carry));
            carry = over;
            digits.push(byte);
        }
        let mut text = String::with_capacity(digits.len().saturating_mul(2).saturating_add(5));
        text.push_str(if negative { "\"-0x" } else { "\"0x" });
        const HEX: &[u8; 16] = b"0123456789abcdef";
        for byte in digits.iter().rev() {
            for nibble in [byte >> 4, byte & 15] {
                text.push(HEX.get(usize::from(nibble)).copied().unwrap_or(b'0').into());
            }
        }
        text.push('"');
        self.put(&text);
    }
}

/// A module and a name in one.
pub(in crate::formats) fn dotted(module: &str, name: &str) -> String {
    match modern(module) {
        "" => name.to_string(),
        module => format!("{module}.{name}"),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::source::Source;

    fn json(pickle: &[u8], budget: usize) -> (String, bool) {
        let source = Source::from_bytes("p", pickle.to_vec());
        let graph = Graph::read(&source, 0, source.len()).unwrap();
        let (text, cut) = Writer::new(&graph, budget, &|_| None).value(graph.root());
        (String::from_utf8(text).unwrap(), cut)
    }

    #[test]
    fn values_are_kept_without_loss() {
        for (pickle, text) in [
            (&b"(lp0\nI1\naF1.5\naNa\x88aL123456789012345678901234567890L\na."[..], "[1, 1.5, null, true, 123456789012345678901234567890]"),
            (b"}X\x01\0\0\0aK\x01sX\x01\0\0\0aK\x02s.", "{\"a\": 2}"),
            (b"C\x02\xff\x00.", "{\"base64\": \"/wA=\"}"),
            (
                b"cargparse\nNamespace\n)\x81}X\x02\0\0\0lrG\x7f\xf0\0\0\0\0\0\0sb.",
                "{\"__opaque__\": \"argparse.Namespace\", \"state\": {\"lr\": \"Infinity\"}}",
            ),
            (b"c__builtin__\nset\n]K\x01a\x85R.", "[1]"),
            (b"ccollections\nOrderedDict\n]]K\x01aK\x02aa\x85R.", "{\"1\": 2}"),
            (b"cpathlib\nPosixPath\nX\x01\0\0\0a\x85R.", "{\"__opaque__\": \"pathlib.PosixPath\", \"args\": [\"a\"]}"),
        ] {
            assert_eq!(json(pickle, 1000), (text.to_string(), false));
        }
    }

    #[test]
    fn what_is_left_out_is_marked_and_the_text_stays_json() {
        let list = [&b"("[..], &b"K\x07".repeat(20), b"l"].concat();
        let dict = [&b"("[..], &(0..20).flat_map(|i| [b'K', i, b'K', 7]).collect::<Vec<_>>(), b"d"].concat();
        let both = [&list[..], &dict, b"N\x87"].concat();
        for mut pickle in [list, dict, both] {
            pickle.push(b'.');
            let whole = json(&pickle, 10_000);
            assert!(!whole.1);
            for budget in 0..whole.0.len() {
                let (text, cut) = json(&pickle, budget);
                let value: serde_json::Value = serde_json::from_str(&text).unwrap();
                assert_eq!(cut, text.contains("\"__opaque__\": \"left out\""), "{budget}: {text}");
                assert!(cut || text == whole.0, "{budget}: {value}");
            }
        }
    }

    #[test]
    fn loops_and_depths_and_sizes_end() {
        let (text, cut) = json(b"]q\x00h\x00a.", 10_000);
        assert!(cut && text.contains("left out"));
        let deep: Vec<u8> = std::iter::repeat_n(b']', 5000).chain(std::iter::repeat_n(b'a', 4999)).chain([b'.']).collect();
        assert!(json(&deep, 100_000).1);
        let laughs: Vec<u8> = [b"]".to_vec(), (0..60).flat_map(|_| b"2\x86".to_vec()).collect(), b".".to_vec()].concat();
        let (text, cut) = json(&laughs, 5000);
        assert!(cut && text.len() < 20_000, "{}", text.len());
        let big = [&b"\x8b"[..], &600_000_u32.to_le_bytes(), &[0x11; 600_000], b"."].concat();
        assert!(json(&big, 10_000_000).0.starts_with("\"0x1111"));
    }
}
