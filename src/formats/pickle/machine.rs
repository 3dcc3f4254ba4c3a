//! The stack machine: opcodes in, nodes out.
//!
//! `INST`, `OBJ` and `PERSID` of protocol 0 only record what they name, as `GLOBAL` and `REDUCE` do, and are taken. Refused are the opcodes whose meaning is not in
//! the stream: `EXT1`, `EXT2` and `EXT4` name an entry of the reading program's own table, `NEXT_BUFFER` and `READONLY_BUFFER` bytes that it is handed separately.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::stopped;
use super::budget::{Budget, TooMuch};
use super::{Graph, Id, Node, Object, Run};
use crate::error::{Error, Result, quoted};
use crate::limits::{self, Pickle};
use crate::reader::{Reader, Stop};
use crate::source::Source;

/// Longest line of a number, a module or a name, in bytes.
const LINE_BYTES: usize = 64 << 10;

/// Why the machine stopped early.
enum Halt {
    /// The stream ends within an opcode.
    Stop(Stop),
    /// The stream is wrong: what is wrong.
    Wrong(String),
    /// An opcode that is not carried out.
    Refused(String),
    /// More than the limits allow.
    Limit(String),
}

impl From<Stop> for Halt {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

impl From<TooMuch> for Halt {
    fn from(TooMuch(what): TooMuch) -> Self {
        Self::Limit(what)
    }
}

type Step<T> = std::result::Result<T, Halt>;

fn wrong<T>(what: impl Into<String>) -> Step<T> {
    Err(Halt::Wrong(what.into()))
}

pub(super) fn run(source: &Arc<Source>, start: u64, end: u64) -> Result<Graph> {
    let mut machine = Machine::new(Reader::new(source, start, end), Pickle::of(source.stored_len()));
    match machine.run() {
        Ok(root) => {
            let Machine { reader, nodes, items, objects, text, globals, persistent, .. } = machine;
            let end = reader.position();
            let mut graph = Graph { source: Arc::clone(source), nodes, items, objects, text, globals, persistent, given: HashMap::new(), root, end };
            super::keys::keep_last(&mut graph);
            Ok(graph)
        }
        Err(halt) => {
            let at = machine.opcode_at;
            Err(match halt {
                Halt::Stop(Stop::End { .. }) if machine.reader.left() == 0 || machine.truncated => {
                    Error::format(format!("its pickle ends without a STOP (at byte {at} of {})", source.len())).hint("a download that was cut short?")
                }
                Halt::Stop(stop) => stopped(stop, &format!("an opcode of its pickle at byte {at}"), source),
                Halt::Wrong(what) => Error::format(format!("its pickle is damaged at byte {at}: {what}")),
                Halt::Refused(what) => Error::unsupported(format!("its pickle has an unsupported opcode at byte {at}: {what}")),
                Halt::Limit(what) => Error::limit(what),
            })
        }
    }
}

/// Whether a file's first bytes run as a pickle of protocol 0 or 1, which has no magic number: to its end, or for many opcodes.
pub(super) fn begins_as_text(bytes: &[u8], whole: bool) -> bool {
    const ENOUGH: u64 = 12;
    if !bytes.first().is_some_and(|first| b"(]}cNIJKMLFGSUTVX)dl".contains(first)) {
        return false;
    }
    let source = Source::from_bytes("", bytes.to_vec());
    let mut machine = Machine::new(Reader::new(&source, 0, source.len()), Pickle::of(source.len()));
    match machine.run() {
        Ok(root) => match machine.nodes.get(root as usize) {
            // Two letters and a dot are no evidence.
            Some(Node::None | Node::Bool(_) | Node::Int(_) | Node::Float(_) | Node::Text(_)) => bytes.len() > 8,
            _ => true,
        },
        Err(Halt::Stop(Stop::End { .. })) => !whole && machine.budget.opcodes_so_far() >= ENOUGH,
        Err(_) => false,
    }
}

struct Machine<'a> {
    reader: Reader<'a>,
    nodes: Vec<Node>,
    items: Vec<Id>,
    objects: Vec<Object>,
    text: Vec<u8>,
    globals: Vec<(String, String)>,
    known: HashMap<(String, String), u32>,
    persistent: Vec<Id>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: Vec<Id>,
    /// Memo entries whose numbers leave gaps.
    sparse_memo: HashMap<u32, Id>,
    /// Values that cannot change and occur often, each one node: their place is [`Machine::shared`]'s.
    common: [Option<Id>; COMMON],
    opcode_at: u64,
    truncated: bool,
    budget: Budget,
}

/// None, False, True, the empty tuple, and every integer of one byte.
const COMMON: usize = 4 + 256;

impl<'a> Machine<'a> {
    fn new(reader: Reader<'a>, limits: Pickle) -> Self {
        Self {
            reader,
            nodes: Vec::new(),
            items: Vec::new(),
            objects: Vec::new(),
            text: Vec::new(),
            globals: Vec::new(),
            known: HashMap::new(),
            persistent: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            sparse_memo: HashMap::new(),
            common: [None; COMMON],
            opcode_at: 0,
            truncated: false,
            budget: Budget::new(limits),
        }
    }

    fn run(&mut self) -> Step<Id> {
        loop {
            self.opcode_at = self.reader.position();
            self.budget.opcodes(1)?;
            let opcode = match self.reader.u8() {
                Ok(opcode) => opcode,
                Err(stop) => {
                    self.truncated = true;
                    return Err(stop.into());
                }
            };
            if opcode == b'.' {
                return self.pop();
            }
            self.step(opcode)?;
        }
    }

    fn step(&mut self, opcode: u8) -> Step<()> {
        match opcode {
            // Structure of the stream.
            0x80 => match self.reader.u8()? {
                0..=5 => Ok(()),
                other => wrong(format!("protocol {other}, expected 0 to 5")),
            },
            0x95 => {
                let len = self.reader.u64()?;
                let left = self.reader.left();
                if len > left { Err(Halt::Stop(Stop::End { needed: len, left })) } else { Ok(()) }
            }
            b'(' => {
                self.budget.references(2)?;
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'0' => match self.marks.last() {
                Some(mark) if *mark == self.stack.len() => {
                    self.marks.pop();
                    Ok(())
                }
                _ => self.pop().map(drop),
            },
            b'1' => self.pop_mark().map(drop),
            b'2' => {
                let top = self.top()?;
                self.lay(top)
            }
            // Plain values.
            b'N' => self.shared(0, Node::None),
            0x88 => self.shared(2, Node::Bool(true)),
            0x89 => self.shared(1, Node::Bool(false)),
            b'J' => {
                let value = self.reader.u32()?.cast_signed();
                self.push(Node::Int(value.into()))
            }
            b'K' => {
                let value = self.reader.u8()?;
                self.shared(usize::from(value).saturating_add(4), Node::Int(value.into()))
            }
            b'M' => {
                let value = self.reader.u16()?;
                self.push(Node::Int(value.into()))
            }
            0x8a => {
                let len = self.reader.u8()?;
                self.long(len.into())
            }
            0x8b => match u64::try_from(self.reader.u32()?.cast_signed()) {
                Ok(len) => self.long(len),
                Err(_) => wrong("an integer of negative length"),
            },
            b'G' => {
                let bits = self.reader.u64()?.swap_bytes();
                self.push(Node::Float(f64::from_bits(bits)))
            }
            b'I' => self.int_line(),
            b'L' => self.long_line(),
            b'F' => {
                let line = self.line(LINE_BYTES)?;
                match std::str::from_utf8(&line).ok().and_then(|text| text.trim().parse().ok()) {
                    Some(value) => self.push(Node::Float(value)),
                    None => wrong(format!("{} is no float", quoted(&line))),
                }
            }
            // Strings and bytes.
            b'X' | b'T' => {
                let len = self.reader.u32()?;
                self.counted(len.into(), Node::Text)
            }
            b'U' | 0x8c => {
                let len = self.reader.u8()?;
                self.counted(len.into(), Node::Text)
            }
            0x8d => {
                let len = self.reader.u64()?;
                self.counted(len, Node::Text)
            }
            b'B' => {
                let len = self.reader.u32()?;
                self.counted(len.into(), Node::Bytes)
            }
            b'C' => {
                let len = self.reader.u8()?;
                self.counted(len.into(), Node::Bytes)
            }
            0x8e | 0x96 => {
                let len = self.reader.u64()?;
                self.counted(len, Node::Bytes)
            }
            b'S' => self.string_line(),
            b'V' => {
                let line = self.line(self.budget.most_text())?;
                let text = super::text::raw_unicode_escape(&line);
                self.escaped(text)
            }
            // Containers.
            b')' => self.shared(3, Node::Tuple(0, 0)),
            b']' => self.push(Node::List(Vec::new())),
            b'}' => self.push(Node::Dict(Vec::new())),
            0x8f => self.push(Node::Set(Vec::new())),
            b't' => {
                let items = self.pop_mark()?;
                self.tuple(&items)
            }
            0x85 => self.small_tuple(1),
            0x86 => self.small_tuple(2),
            0x87 => self.small_tuple(3),
            b'l' => {
                let items = self.pop_mark()?;
                self.budget.references(items.len())?;
                self.push(Node::List(items))
            }
            b'd' => {
                let items = self.pop_mark()?;
                self.budget.references(items.len())?;
                let pairs = pairs(&items)?;
                self.push(Node::Dict(pairs))
            }
            0x91 => {
                let items = self.pop_mark()?;
                self.budget.references(items.len())?;
                self.push(Node::Set(items))
            }
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])
            }
            b'e' | 0x90 => {
                let items = self.pop_mark()?;
                self.extend(items)
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set_items(&[[key, value]])
            }
            b'u' => {
                let items = self.pop_mark()?;
                let (pairs, rest) = items.as_chunks();
                if rest.is_empty() { self.set_items(pairs) } else { wrong("a key without a value") }
            }
            // Memo.
            b'p' => {
                let index = self.index_line()?;
                self.put(index)
            }
            b'q' => {
                let index = self.reader.u8()?;
                self.put(index.into())
            }
            b'r' => {
                let index = self.reader.u32()?;
                self.put(index)
            }
            0x94 => match u32::try_from(self.memo.len().saturating_add(self.sparse_memo.len())) {
                Ok(index) => self.put(index),
                Err(_) => Err(Halt::Limit("its pickle has too many memo entries".to_string())),
            },
            b'g' => {
                let index = self.index_line()?;
                self.get(index)
            }
            b'h' => {
                let index = self.reader.u8()?;
                self.get(index.into())
            }
            b'j' => {
                let index = self.reader.u32()?;
                self.get(index)
            }
            // What would be imported and called.
            b'c' => {
                let global = self.global_lines()?;
                self.lay(global)
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let global = self.global_of(module, name)?;
                self.lay(global)
            }
            b'R' | 0x81 => {
                let (args, callee) = (self.pop()?, self.pop()?);
                if !matches!(self.nodes.get(args as usize), Some(Node::Tuple(..))) {
                    return wrong("arguments that are no tuple");
                }
                self.object(callee, args, None)
            }
            0x92 => {
                let (kwargs, args, callee) = (self.pop()?, self.pop()?, self.pop()?);
                if !matches!(self.nodes.get(args as usize), Some(Node::Tuple(..))) {
                    return wrong("arguments that are no tuple");
                }
                self.object(callee, args, Some(kwargs))
            }
            b'i' => {
                let callee = self.global_lines()?;
                let items = self.pop_mark()?;
                self.tuple(&items)?;
                let args = self.pop()?;
                self.object(callee, args, None)
            }
            b'o' => {
                let items = self.pop_mark()?;
                let Some((callee, args)) = items.split_first() else { return wrong("an object without a class") };
                self.tuple(args)?;
                let args = self.pop()?;
                self.object(*callee, args, None)
            }
            b'b' => {
                let state = self.pop()?;
                let target = self.top()?;
                if let Some(object) = self.object_at(target) {
                    object.state = Some(state);
                    return Ok(());
                }
                match self.nodes.get(target as usize) {
                    // Something outside may be given attributes; they are not its own.
                    Some(Node::Persistent(_)) => Ok(()),
                    _ => wrong("a state for something that is no object"),
                }
            }
            b'Q' => {
                let name = self.pop()?;
                self.persistent(name)
            }
            b'P' => {
                let line = self.line(LINE_BYTES)?;
                self.escaped(line)?;
                let name = self.pop()?;
                self.persistent(name)
            }
            0x82..=0x84 => Err(Halt::Refused(format!("0x{opcode:02x} (EXT), whose meaning only the program that wrote it knows"))),
            0x97 | 0x98 => Err(Halt::Refused(format!("0x{opcode:02x}, which takes bytes from outside of the pickle"))),
            _ => Err(Halt::Refused(format!("0x{opcode:02x} is none of Python's"))),
        }
    }

    fn add(&mut self, node: Node) -> Step<Id> {
        self.budget.node(&node)?;
        let id = Id::try_from(self.nodes.len()).unwrap_or(Id::MAX);
        self.nodes.push(node);
        Ok(id)
    }

    /// Pushes a value that has one node however often it occurs.
    fn shared(&mut self, place: usize, node: Node) -> Step<()> {
        let id = match self.common.get(place).copied().flatten() {
            Some(id) => id,
            None => {
                let id = self.add(node)?;
                if let Some(common) = self.common.get_mut(place) {
                    *common = Some(id);
                }
                id
            }
        };
        self.lay(id)
    }

    /// Puts a value on the stack.
    fn lay(&mut self, id: Id) -> Step<()> {
        self.budget.references(1)?;
        self.stack.push(id);
        Ok(())
    }

    fn push(&mut self, node: Node) -> Step<()> {
        let id = self.add(node)?;
        self.lay(id)
    }

    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Step<Id> {
        match self.stack.pop() {
            Some(id) if self.stack.len() >= self.floor() => Ok(id),
            _ => wrong("takes more from the stack than is on it"),
        }
    }

    fn top(&self) -> Step<Id> {
        match self.stack.last() {
            Some(id) if self.stack.len() > self.floor() => Ok(*id),
            _ => wrong("takes more from the stack than is on it"),
        }
    }

    fn pop_mark(&mut self) -> Step<Vec<Id>> {
        match self.marks.pop() {
            Some(mark) if mark <= self.stack.len() => Ok(self.stack.split_off(mark)),
            _ => wrong("has no mark on its stack"),
        }
    }

    fn tuple(&mut self, items: &[Id]) -> Step<()> {
        let start = u32::try_from(self.items.len()).ok();
        let (Some(start), Ok(len)) = (start, u32::try_from(items.len())) else { return Err(Halt::Limit("its pickle's tuples are too long".to_string())) };
        self.budget.references(items.len())?;
        self.items.extend_from_slice(items);
        self.push(Node::Tuple(start, len))
    }

    fn small_tuple(&mut self, len: usize) -> Step<()> {
        let mut items = [0; 3];
        for place in items.iter_mut().take(len).rev() {
            *place = self.pop()?;
        }
        self.tuple(items.get(..len).unwrap_or_default())
    }

    /// Appends many items at once; the first of a list become it as they are.
    fn extend(&mut self, items: Vec<Id>) -> Step<()> {
        let target = self.top()?;
        match self.nodes.get_mut(target as usize) {
            Some(Node::List(list) | Node::Set(list)) if list.is_empty() => {
                self.budget.references(items.len())?;
                *list = items;
                Ok(())
            }
            _ => self.append(&items),
        }
    }

    fn append(&mut self, items: &[Id]) -> Step<()> {
        self.budget.references(items.len())?;
        let target = self.top()?;
        match self.nodes.get_mut(target as usize) {
            Some(Node::List(list) | Node::Set(list)) => list.extend_from_slice(items),
            _ => match self.object_at(target) {
                Some(object) => object.items.extend_from_slice(items),
                None => return wrong("items for something that is no list, set or object"),
            },
        }
        Ok(())
    }

    fn set_items(&mut self, pairs: &[[Id; 2]]) -> Step<()> {
        self.budget.references(pairs.len().saturating_mul(2))?;
        let target = self.top()?;
        let pairs = pairs.iter().map(|[key, value]| (*key, *value));
        match self.nodes.get_mut(target as usize) {
            Some(Node::Dict(dict)) => dict.extend(pairs),
            _ => match self.object_at(target) {
                Some(object) => object.pairs.extend(pairs),
                None => return wrong("keys for something that is no dict or object"),
            },
        }
        Ok(())
    }

    fn put(&mut self, index: u32) -> Step<()> {
        let top = self.top()?;
        let len = self.memo.len();
        match self.memo.get_mut(index as usize) {
            Some(entry) => *entry = top,
            None if index as usize == len => {
                self.budget.references(1)?;
                self.memo.push(top);
            }
            None => {
                // An entry of a hash map.
                self.budget.references(4)?;
                self.sparse_memo.insert(index, top);
            }
        }
        Ok(())
    }

    fn get(&mut self, index: u32) -> Step<()> {
        match self.memo.get(index as usize).or_else(|| self.sparse_memo.get(&index)) {
            Some(id) => self.lay(*id),
            None => wrong(format!("uses memo entry {index}, which is not set")),
        }
    }

    fn persistent(&mut self, name: Id) -> Step<()> {
        let id = self.add(Node::Persistent(name))?;
        self.persistent.push(id);
        self.lay(id)
    }

    fn object(&mut self, callee: Id, args: Id, kwargs: Option<Id>) -> Step<()> {
        // There are no more objects than nodes, whose number is limited.
        let index = u32::try_from(self.objects.len()).unwrap_or(u32::MAX);
        self.push(Node::Object(index))?;
        self.objects.push(Object { callee, args, kwargs, state: None, items: Vec::new(), pairs: Vec::new() });
        Ok(())
    }

    fn object_at(&mut self, id: Id) -> Option<&mut Object> {
        match self.nodes.get(id as usize) {
            Some(Node::Object(index)) => self.objects.get_mut(*index as usize),
            _ => None,
        }
    }

    fn global(&mut self, module: String, name: String) -> Step<Id> {
        let key = (module, name);
        let index = match self.known.get(&key) {
            Some(index) => *index,
            None => {
                let index = u32::try_from(self.globals.len()).unwrap_or(u32::MAX);
                self.budget.name(&key.0, &key.1)?;
                self.globals.push(key.clone());
                self.known.insert(key, index);
                index
            }
        };
        self.add(Node::Global(index))
    }

    fn global_lines(&mut self) -> Step<Id> {
        let (module, name) = (self.line(LINE_BYTES)?, self.line(LINE_BYTES)?);
        self.global(String::from_utf8_lossy(&module).into_owned(), String::from_utf8_lossy(&name).into_owned())
    }

    fn global_of(&mut self, module: Id, name: Id) -> Step<Id> {
        let text = |id: Id| match self.nodes.get(id as usize) {
            Some(Node::Text(run)) if run.len < LINE_BYTES as u64 => {
                let start = usize::try_from(run.copy).ok()?;
                let bytes = self.text.get(start..start.checked_add(usize::try_from(run.len).ok()?)?)?;
                Some(String::from_utf8_lossy(bytes).into_owned())
            }
            _ => None,
        };
        match (text(module), text(name)) {
            (Some(module), Some(name)) => self.global(module, name),
            _ => wrong("names a global by something that is no short string"),
        }
    }

    /// A run of the next `len` bytes, with a copy if it is short.
    fn counted(&mut self, len: u64, node: fn(Run) -> Node) -> Step<()> {
        let at = self.reader.position();
        if len > limits::INLINE_STRING_BYTES {
            self.reader.skip(len)?;
            return self.push(node(Run { at, len, copy: Run::NO_COPY }));
        }
        let copy = self.text_end()?;
        let bytes = self.reader.take(usize::try_from(len).unwrap_or(usize::MAX))?;
        self.text.extend_from_slice(bytes);
        self.push(node(Run { at, len, copy }))
    }

    fn text_end(&self) -> Step<u32> {
        self.budget.text(self.text.len())?;
        Ok(u32::try_from(self.text.len()).unwrap_or(Run::NO_COPY))
    }

    /// Text that does not stand in the stream as it is.
    fn escaped(&mut self, text: Vec<u8>) -> Step<()> {
        let copy = self.text_end()?;
        let len = text.len() as u64;
        self.text.extend(text);
        self.push(Node::Text(Run { at: Run::NOWHERE, len, copy }))
    }

    fn long(&mut self, len: u64) -> Step<()> {
        if len > 8 {
            return self.counted(len, Node::Long);
        }
        let bytes = self.reader.take(usize::try_from(len).unwrap_or(0))?;
        let sign = if bytes.last().is_some_and(|b| *b >= 0x80) { 0xFF } else { 0 };
        let mut wide = [sign; 8];
        wide.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        self.push(Node::Int(i64::from_le_bytes(wide)))
    }

    fn line(&mut self, most: usize) -> Step<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            match self.reader.u8()? {
                b'\n' => break,
                _ if line.len() >= most => return wrong(format!("a line of more than {most} bytes")),
                byte => line.push(byte),
            }
        }
        // Bytes of a line are looked at one by one.
        self.budget.opcodes(line.len() as u64 / 8)?;
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(line)
    }

    fn index_line(&mut self) -> Step<u32> {
        let line = self.line(LINE_BYTES)?;
        match std::str::from_utf8(&line).ok().and_then(|text| text.trim().parse().ok()) {
            Some(index) => Ok(index),
            None => wrong(format!("{} is no number of a memo entry", quoted(&line))),
        }
    }

    fn int_line(&mut self) -> Step<()> {
        let line = self.line(LINE_BYTES)?;
        match line.as_slice() {
            b"00" => self.push(Node::Bool(false)),
            b"01" => self.push(Node::Bool(true)),
            _ => self.decimal(&line),
        }
    }

    fn long_line(&mut self) -> Step<()> {
        let line = self.line(self.budget.most_text())?;
        self.decimal(line.strip_suffix(b"L").unwrap_or(&line))
    }

    fn decimal(&mut self, line: &[u8]) -> Step<()> {
        let digits = line.trim_ascii();
        let unsigned = digits.strip_prefix(b"-").unwrap_or(digits);
        if unsigned.is_empty() || !unsigned.iter().all(u8::is_ascii_digit) {
            return wrong(format!("{} is no integer", quoted(line)));
        }
        if let Some(value) = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()) {
            return self.push(Node::Int(value));
        }
        let copy = self.text_end()?;
        self.text.extend_from_slice(digits);
        self.push(Node::Decimal(Run { at: Run::NOWHERE, len: digits.len() as u64, copy }))
    }

    /// A string of Python 2 in quotes, with its escapes.
    fn string_line(&mut self) -> Step<()> {
        let line = self.line(self.budget.most_text())?;
        let inner = match line.trim_ascii() {
            [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] => inner,
            _ => return wrong("a string without its quotes"),
        };
        match super::text::string_escape(inner) {
            Some(text) => self.escaped(text),
            None => wrong("a string with a broken escape"),
        }
    }
}

fn pairs(items: &[Id]) -> Step<Vec<(Id, Id)>> {
    let (pairs, rest) = items.as_chunks();
    if !rest.is_empty() {
        return wrong("a key without a value");
    }
    Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect())
}

#[cfg(test)]
mod tests;
