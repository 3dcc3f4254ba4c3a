//! PyTorch checkpoints and other pickles: read by an interpreter that imports and runs nothing.
//!
//! | form | recognised by | module |
//! |---|---|---|
//! | zip archive (since version 1.6), TorchScript | members `data.pkl`, `constants.pkl` | [`archive`] |
//! | `.pt2` of torch.export | member `archive_format` | [`pt2`] |
//! | legacy: pickles and storages back to back | a first pickle of one magic number | [`legacy`] |
//! | tar archive (before 0.1.10) | members `storages` and `pickle` | [`tar`] |
//! | any other pickle | its first bytes | [`super::pickle`] |
//!
//! The pickle gives a graph of values ([`super::pickle`]), [`walk`] goes through it, [`rebuild`] recognises what makes tensors, [`tensor`] places them.

mod archive;
mod globals;
mod legacy;
mod numpy;
mod pt2;
mod quantised;
mod rebuild;
mod sparse;
mod storage;
mod tar;
mod tensor;
mod types;
mod walk;

use std::sync::Arc;

use self::archive::{Archive, Records};
use self::rebuild::Rebuild;
use self::storage::{Finder, Nowhere, Storages};
use self::tensor::Adder;
use self::walk::Walk;
use super::pickle::json::dotted;
use super::pickle::{Graph, Node};
use super::{Format, Head, Opening, Shards, hf_index, zip};
use crate::catalog::Builder;
use crate::error::{Error, Result, left_over};
use crate::limits;
use crate::reader::Endian;
use crate::source::{Source, SourceId};

pub(super) const FORMAT: Format = Format {
    name: "pytorch",
    title: "PyTorch .pt .pth .bin .ckpt (zip, legacy, tar), TorchScript, .pt2, sharded sets; pickles with NumPy arrays",
    extensions: &["pt", "pth", "bin", "ckpt", "pkl", "pt2"],
    sniff,
    open,
    part: Some(part),
};

/// How many globals are listed by name in one issue.
const SHOWN: usize = 5;

fn sniff(head: &Head<'_>) -> bool {
    match head.bytes {
        _ if zip::is_magic(head.bytes) => archive::is_one(head.source),
        // A header length of safetensors may begin as a pickle does; no pickle has a brace behind it.
        _ if (super::safetensors::FORMAT.sniff)(head) => false,
        // A pickle with a protocol number; a zip that was put behind one is what its program would open.
        [0x80, 0..=5, ..] => true,
        _ if tar::is_one(head.bytes, head.source) => true,
        _ => Graph::begins_as_text(head.bytes, head.source.len() == head.bytes.len() as u64) || (head.bytes.len() >= 22 && archive::is_one(head.source)),
    }
}

fn open(opening: &mut Opening, builder: &mut Builder) -> Result<()> {
    let main = Arc::clone(opening.main());
    if let Some(index) = hf_index::index_of(opening) {
        return hf_index::open_index(opening, &index, builder);
    }
    let name = String::from_utf8_lossy(opening.file_name()).into_owned();
    if let Some((prefix, _, of)) = super::numbered_name(&name, ".bin").filter(|(_, _, of)| *of > 1) {
        let names: Vec<String> = (1..=of).map(|n| format!("{prefix}-{n:05}-of-{of:05}.bin")).collect();
        return hf_index::open_shards(opening, names.iter().map(|n| n.as_bytes()), None, builder);
    }
    File { main: &main, stem: opening.stem(), shard: false }.read(builder, &mut |_| false)
}

fn part(source: &Arc<Source>, builder: &mut Builder, shards: &mut Shards<'_>) -> Result<()> {
    File { main: source, stem: b"", shard: true }.read(builder, shards.elsewhere)
}

/// One file to be read.
struct File<'a> {
    main: &'a Arc<Source>,
    stem: &'a [u8],
    shard: bool,
}

impl File<'_> {
    fn read(&self, builder: &mut Builder, elsewhere: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
        builder.sharing_is_normal();
        builder.names_may_repeat();
        let id = builder.source(Arc::clone(self.main));
        let mut magic = [0; 262];
        let len = usize::try_from(self.main.len()).unwrap_or(usize::MAX).min(magic.len());
        let head = magic.get_mut(..len).unwrap_or_default();
        self.main.read_at(0, head).map_err(|e| Error::io("cannot read its first bytes", e))?;
        if tar::is_one(head, self.main) {
            let (graph, mut storages) = tar::read(self.main, id)?;
            builder.fact("form", "tar".into());
            return self.walk(&graph, &mut storages, id, Endian::Little, builder, elsewhere);
        }
        if !zip::is_magic(head) && (head.starts_with(&[0x80]) || !archive::is_one(self.main)) {
            return self.bare(id, builder, elsewhere);
        }
        self.archive(id, builder, elsewhere)
    }

    /// A file that starts with a pickle.
    fn bare(&self, id: SourceId, builder: &mut Builder, elsewhere: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
        let end = self.main.len();
        let graph = Graph::read(self.main, 0, end)?;
        if legacy::is_magic(&graph) {
            let legacy::File { graph, mut storages, issue } = legacy::read(self.main, id, graph.end(), end)?;
            builder.fact("form", "legacy".into());
            if let Some(what) = issue {
                builder.dropped();
                builder.issue(builder.path(id), what, "the tensors that are there are served");
            }
            return self.walk(&graph, &mut storages, id, Endian::Little, builder, elsewhere);
        }
        let rest = end.saturating_sub(graph.end());
        if rest > 0 && matches!(graph.node(graph.root()), Node::Int(_) | Node::Long(_) | Node::Decimal(_)) {
            return Err(Error::format("starts with a pickled number that is not the magic number of PyTorch's legacy format (a damaged file?)"));
        }
        if rest > 0 {
            builder.issue(builder.path(id), left_over(rest, "the pickle", graph.end()), "shown in source/ only");
        }
        builder.fact("form", "pickle".into());
        self.walk(&graph, &mut Nowhere, id, Endian::Little, builder, elsewhere)
    }

    fn archive(&self, id: SourceId, builder: &mut Builder, elsewhere: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
        let (directory, members) = Archive::directory(self.main)?;
        let archive = Archive::open(self.main, id, directory, &members, builder)?;
        let endian = match archive.has(b"byteorder").then(|| archive.small(b"byteorder", 64, builder)) {
            Some(Ok(order)) if order.trim_ascii() == b"big" => Endian::Big,
            _ => Endian::Little,
        };
        builder.endian(endian);
        if archive.has(b"archive_format") && !archive.has(b"data.pkl") {
            builder.fact("form", "pt2".into());
            return pt2::read(&archive, endian, &mut Adder::new(builder, id, elsewhere));
        }
        let script = archive.has(b"constants.pkl");
        builder.fact("form", if script { "torchscript" } else { "zip" }.into());
        if archive.has(b"data.pkl") {
            let graph = pickle(&archive, b"data.pkl", builder)?;
            let mut storages = Records::new(&archive, b"data/");
            self.walk(&graph.0, &mut storages, graph.1, endian, builder, elsewhere)?;
        }
        if script {
            let graph = pickle(&archive, b"constants.pkl", builder)?;
            if graph.0.sequence(graph.0.root()).is_some_and(<[u32]>::is_empty) {
                return Ok(());
            }
            let mut storages = Records::new(&archive, b"constants/");
            let constants = Self { stem: b"constants", ..*self };
            constants.walk_under(Some(b"constants"), &graph.0, &mut storages, graph.1, endian, builder, elsewhere)?;
        }
        Ok(())
    }

    fn walk(
        &self,
        graph: &Graph,
        storages: &mut dyn Storages,
        stream: SourceId,
        endian: Endian,
        builder: &mut Builder,
        elsewhere: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<()> {
        self.walk_under(None, graph, storages, stream, endian, builder, elsewhere)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a form that are found by each form in its own way")]
    fn walk_under(
        &self,
        prefix: Option<&[u8]>,
        graph: &Graph,
        storages: &mut dyn Storages,
        stream: SourceId,
        endian: Endian,
        builder: &mut Builder,
        elsewhere: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<()> {
        note_globals(graph, stream, builder);
        let rebuild = Rebuild { graph, finder: Finder::new(storages, stream), endian };
        Walk::new(rebuild, Adder::new(builder, stream, elsewhere), self.stem, self.shard).run(prefix)
    }
}

/// Reads a pickle of an archive; gives its source too.
fn pickle(archive: &Archive<'_>, name: &[u8], builder: &mut Builder) -> Result<(Graph, SourceId)> {
    let place = archive.place(name, builder)?;
    let source = builder.source_of(place.source).ok_or_else(|| Error::format("its source is missing"))?;
    let most = limits::Pickle::of(source.stored_len()).stream_bytes;
    if place.bytes > most {
        return Err(Error::limit(format!("its pickle has {} bytes, the limit for a file of {} bytes is {most}", place.bytes, source.stored_len())));
    }
    Ok((Graph::read(&source, place.offset, place.offset.saturating_add(place.bytes))?, place.source))
}

/// Lists every global that a pickle names, and makes an issue of those that would run code.
fn note_globals(graph: &Graph, stream: SourceId, builder: &mut Builder) {
    builder.list_fact("globals", graph.globals().iter().map(|(module, name)| dotted(module, name)));
    let mut dangerous: Vec<String> =
        graph.globals().iter().filter(|(module, name)| globals::is_dangerous(module, name)).map(|(module, name)| dotted(module, name)).collect();
    if dangerous.is_empty() {
        return;
    }
    let more = dangerous.len().saturating_sub(SHOWN);
    dangerous.truncate(SHOWN);
    let list = crate::error::printable(&dangerous.join(", "));
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    builder.issue(
        builder.path(stream),
        format!("names {list}{more}, which would run code when unpickled"),
        "nothing was run; the file should not be loaded by Python",
    );
}
