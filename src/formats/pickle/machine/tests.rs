//! Pickles of every protocol, and damaged ones.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::*;

fn read(bytes: &[u8]) -> Result<Graph> {
    let source = Source::from_bytes("p", bytes.to_vec());
    Graph::read(&source, 0, source.len())
}

fn refused(bytes: &[u8]) -> String {
    match read(bytes) {
        Ok(_) => panic!("{bytes:?} is taken"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn a_global_is_a_pair_of_strings_and_a_call_is_not_made() {
    let graph = read(b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R.").unwrap();
    let (module, name, args) = graph.call(graph.root()).unwrap();
    assert_eq!((module, name, args.len()), ("os", "system", 1));
    assert_eq!(graph.globals(), [("os".to_string(), "system".to_string())]);
    let graph = read(b"\x80\x04\x8c\x02os\x8c\x06system\x93.").unwrap();
    assert_eq!(graph.global(graph.root()), Some(("os", "system")));
    let graph = read(b"(ios\nsystem\n.").unwrap();
    assert_eq!(graph.call(graph.root()).unwrap().1, "system");
}

#[test]
fn every_number_of_every_protocol() {
    for (bytes, value) in [
        (&b"I42\n."[..], 42),
        (b"L-7L\n.", -7),
        (b"J\xff\xff\xff\xff.", -1),
        (b"K\xff.", 255),
        (b"M\x00\x01.", 256),
        (b"\x8a\x00.", 0),
        (b"\x8a\x01\x80.", -128),
        (b"\x8b\x02\x00\x00\x00\x00\x80.", -32768),
        (b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f.", i64::MAX),
    ] {
        let graph = read(bytes).unwrap();
        assert_eq!(graph.int(graph.root()), Some(value), "{bytes:?}");
    }
    for (bytes, value) in [(&b"G\x3f\xf8\0\0\0\0\0\0."[..], 1.5), (b"F1.5\n.", 1.5), (b"F-inf\n.", f64::NEG_INFINITY)] {
        let graph = read(bytes).unwrap();
        assert!(matches!(graph.node(graph.root()), Node::Float(found) if *found == value), "{bytes:?}");
    }
}

#[test]
fn strings_of_every_protocol() {
    for bytes in [
        &b"S'a\\x62c'\n."[..],
        b"Vab\\u0063\n.",
        b"U\x03abc.",
        b"T\x03\0\0\0abc.",
        b"X\x03\0\0\0abc.",
        b"\x8c\x03abc.",
        b"\x8d\x03\0\0\0\0\0\0\0abc.",
        b"C\x03abc.",
    ] {
        let graph = read(bytes).unwrap();
        assert_eq!(graph.short(graph.root()), Some(&b"abc"[..]), "{bytes:?}");
    }
}

#[test]
fn long_bytes_stay_in_the_stream() {
    let bytes = [&b"\x80\x03B\x00\x00\x01\x00"[..], &[7; 65536], b"."].concat();
    let graph = read(&bytes).unwrap();
    let run = graph.run(graph.root()).unwrap();
    assert_eq!((run.position(), run.len(), graph.short(graph.root())), (Some(7), 65536, None));
    assert_eq!(graph.bytes(run, 3).unwrap(), [7; 3].as_slice());
}

#[test]
fn damaged_streams_are_refused_in_words() {
    for (bytes, what) in [
        (&b"\x80\x02"[..], "ends without a STOP"),
        (b"\x80\x09N.", "protocol 9"),
        (b".", "takes more from the stack"),
        (b"(.", "takes more from the stack"),
        (b"N(0\x85.", ""),
        (b"h\x05.", "memo entry 5"),
        (b"N]s.", "takes more"),
        (b"(NNNd.", "a key without a value"),
        (b"NNN\x87NNs.", "no dict or object"),
        (b"N]R.", "no tuple"),
        (b"]Nb.", "no object"),
        (b"\x82\x01.", "EXT"),
        (b"\x97.", "outside of the pickle"),
        (b"\xff.", "none of Python's"),
        (b"\x8b\xff\xff\xff\xff.", "negative length"),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "needs 9223372036854775807 bytes"),
        (b"]]\x93.", "no short string"),
        (b"Iab\n.", "no integer"),
        (b"Sabc\n.", "quotes"),
    ] {
        if what.is_empty() {
            assert!(read(bytes).is_ok());
            continue;
        }
        let text = refused(bytes);
        assert!(text.contains(what), "{bytes:?}: {text}");
    }
}

#[test]
fn memo_numbers_may_leave_gaps_and_values_may_hold_themselves() {
    let graph = read(b"]r\xff\xff\xff\xffj\xff\xff\xff\xffa.").unwrap();
    assert_eq!(graph.sequence(graph.root()), Some([graph.root()].as_slice()));
    assert!(read(b"]\x94N\x94h\x00h\x01\x86.").is_ok());
}

#[test]
fn pickles_without_a_magic_number_are_told_from_text() {
    assert!(begins_as_text(b"(dp0\nS'a'\np1\nI1\ns.", true));
    assert!(begins_as_text(b"ccollections\nOrderedDict\np0\n(tR.", true));
    for text in [&b"hello world"[..], b"I am.\n", b"", b"N.", b"(", b"x", b"(a list)", b"GGUF\x03\0\0\0", b"(\x01\0\0\0\0\0\0{\"a\":1}"] {
        assert!(!begins_as_text(text, true), "{text:?}");
        assert!(!begins_as_text(text, false), "{text:?}");
    }
}
