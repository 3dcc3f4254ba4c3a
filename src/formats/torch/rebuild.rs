//! What torch's rebuild functions would make of their arguments.
//!
//! A function is recognised by its name, its arguments are checked, and the tensor is described; nothing is called.

use super::super::pickle::json::modern;
use super::super::pickle::{Graph, Id, Node};
use super::numpy::Array;
use super::quantised::Affine;
use super::sparse::{Layout, Sparse};
use super::storage::{Bare, Finder, Storage};
use super::tensor::{Bad, Tensor, View};
use super::types::Type;
use crate::catalog::Builder;
use crate::error::quoted;
use crate::reader::Endian;

/// How many wrappers may be around a tensor.
const WRAPPERS: u32 = 16;

/// What a node is, by the name of the function that it calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Neither a tensor nor made of any in a way of its own.
    Plain,
    /// A tensor.
    Tensor,
    /// A subclass without data of its own: the tensors in its state are what it holds.
    Wrapper,
    /// A nested tensor: its parts are its arguments.
    Nested,
}

/// The sizes (or strides) in a tuple, a list or a torch.Size.
pub(super) fn sizes(graph: &Graph, id: Id) -> Option<Vec<u64>> {
    let items = match graph.sequence(id) {
        Some(items) => items,
        None => match graph.call(id)? {
            ("torch", "Size", [items]) => graph.sequence(*items)?,
            _ => return None,
        },
    };
    if items.len() > 4096 {
        return None;
    }
    items.iter().map(|item| u64::try_from(graph.int(*item)?).ok()).collect()
}

/// What a node is.
pub(super) fn role(graph: &Graph, id: Id) -> Role {
    let Some((module, name, args)) = graph.call(id) else {
        // The oldest containers name whole tensors by a bare key, which only they can tell from a storage's.
        return Role::Plain;
    };
    match (module, name) {
        ("torch._utils", "_rebuild_wrapper_subclass") => Role::Wrapper,
        ("torch._utils", "_rebuild_nested_tensor") => Role::Nested,
        ("torch._utils", name) if name.starts_with("_rebuild_") => Role::Tensor,
        ("torch._tensor" | "torch.tensor", "_rebuild_from_type" | "_rebuild_from_type_v2") => match args.first().and_then(|function| graph.global(*function)) {
            Some(("torch._utils", "_rebuild_nested_tensor")) => Role::Wrapper,
            Some(("torch._utils", name)) if name.starts_with("_rebuild_") && name != "_rebuild_wrapper_subclass" => Role::Tensor,
            _ => Role::Wrapper,
        },
        ("torch.nn.parameter", "Parameter" | "Buffer") | ("torch.autograd.variable" | "torch.autograd", "Variable") if held(graph, id).is_some() => {
            Role::Tensor
        }
        (module, name) if name.ends_with("Tensor") && (module == "torch" || module == "torch.cuda") => match graph.object(id).and_then(|object| object.state) {
            Some(state) if graph.tuple(state).is_some_and(|state| state.len() >= 4) => Role::Tensor,
            _ => Role::Plain,
        },
        _ if Array::is_one(graph, id) => Role::Tensor,
        _ => Role::Plain,
    }
}

/// The tensor inside a Parameter or Variable of old: the first argument or the first item of the state.
fn held(graph: &Graph, id: Id) -> Option<Id> {
    let object = graph.object(id)?;
    let first = |id: Id| graph.tuple(id).and_then(|items| items.first()).copied();
    let candidates = [first(object.args), object.state.and_then(first)];
    candidates.into_iter().flatten().find(|inner| *inner != id && matches!(graph.node(*inner), Node::Object(_) | Node::Persistent(_)))
}

/// The attributes that a node has besides being a tensor.
pub(super) fn attributes(graph: &Graph, id: Id) -> Option<Id> {
    match graph.call(id)? {
        ("torch._tensor" | "torch.tensor", "_rebuild_from_type" | "_rebuild_from_type_v2", [_, _, _, state, ..]) => Some(*state),
        ("torch._utils", "_rebuild_parameter_with_state", [_, _, _, state, ..]) => Some(*state),
        _ => None,
    }
}

/// Describes tensors.
pub(super) struct Rebuild<'a> {
    pub(super) graph: &'a Graph,
    pub(super) finder: Finder<'a>,
    /// Byte order of the storages.
    pub(super) endian: Endian,
}

impl Rebuild<'_> {
    /// The tensor that a node stands for.
    pub(super) fn tensor(&mut self, id: Id, builder: &mut Builder) -> Result<Tensor, Bad> {
        self.wrapped(id, WRAPPERS, builder)
    }

    fn wrapped(&mut self, id: Id, depth: u32, builder: &mut Builder) -> Result<Tensor, Bad> {
        let deeper = depth.checked_sub(1).ok_or("has too many wrappers around it")?;
        if let Node::Persistent(_) = self.graph.node(id) {
            return self.bare(id, builder);
        }
        let Some((module, name, args)) = self.graph.call(id) else { return Err("is no tensor".into()) };
        match (module, name) {
            ("torch._utils", name) if name.starts_with("_rebuild_") => self.function(name, args, deeper, builder),
            ("torch._tensor" | "torch.tensor", "_rebuild_from_type" | "_rebuild_from_type_v2") => {
                let [function, _, args, ..] = args else { return Err("is rebuilt with too few arguments".into()) };
                let (function, args) = (self.graph.global(*function), self.graph.sequence(*args));
                let (Some((_, name)), Some(args)) = (function, args) else { return Err("is rebuilt by something that is no function".into()) };
                self.function(name, args, deeper, builder)
            }
            ("torch" | "torch.cuda", _) => {
                let state = self.graph.object(id).and_then(|object| object.state).and_then(|state| self.graph.tuple(state)).unwrap_or_default();
                self.function("_rebuild_tensor", state, deeper, builder)
            }
            ("torch.nn.parameter" | "torch.autograd.variable" | "torch.autograd", _) => match held(self.graph, id) {
                Some(inner) => self.wrapped(inner, deeper, builder),
                None => Err("holds no tensor".into()),
            },
            _ => match Array::of(self.graph, id) {
                Some(array) => array.map(Tensor::Array),
                None => Err(format!("is made by {}.{name}, which is not known to make tensors", modern(module)).into()),
            },
        }
    }

    /// Whether a persistent node is a tensor: in the oldest containers only.
    pub(super) fn is_bare_tensor(&mut self, id: Id, builder: &mut Builder) -> bool {
        let Node::Persistent(name) = self.graph.node(id) else { return false };
        if self.graph.sequence(*name).is_some() {
            return false;
        }
        let key = super::super::pickle::text::str_of(self.graph, *name);
        matches!(self.finder.container.bare(&key, builder), Some(Bare::Tensor(..)))
    }

    fn bare(&mut self, id: Id, builder: &mut Builder) -> Result<Tensor, Bad> {
        let Node::Persistent(name) = self.graph.node(id) else { return Err("is no tensor".into()) };
        let key = super::super::pickle::text::str_of(self.graph, *name);
        match self.finder.container.bare(&key, builder) {
            Some(Bare::Tensor(storage, offset, shape, strides)) => {
                let class = storage.class.ok_or("its storage has no type")?;
                View::new(storage, class, offset, shape, strides, self.endian).map(Tensor::View)
            }
            _ => Err("is no tensor".into()),
        }
    }

    fn function(&mut self, name: &str, args: &[Id], depth: u32, builder: &mut Builder) -> Result<Tensor, Bad> {
        let few = || Bad::from(format!("{name} has {} arguments, too few", args.len()));
        match name {
            "_rebuild_tensor" | "_rebuild_tensor_v2" => {
                let [storage, offset, shape, strides, rest @ ..] = args else { return Err(few()) };
                let storage = self.storage(*storage, builder)?;
                let class = storage.class.ok_or("its storage has no type")?;
                let mut view = self.view(storage, class, *offset, *shape, *strides)?;
                self.bits(&mut view, rest.get(2));
                Ok(Tensor::View(view))
            }
            "_rebuild_tensor_v3" => {
                let [storage, offset, shape, strides, _, _, class, rest @ ..] = args else { return Err(few()) };
                let class = self.class(*class)?;
                let storage = self.storage(*storage, builder)?;
                let mut view = self.view(storage, class, *offset, *shape, *strides)?;
                self.bits(&mut view, rest.first());
                Ok(Tensor::View(view))
            }
            "_rebuild_parameter" | "_rebuild_parameter_with_state" => {
                let [inner, ..] = args else { return Err(few()) };
                self.wrapped(*inner, depth, builder)
            }
            "_rebuild_qtensor" => {
                let [storage, offset, shape, strides, parameters, ..] = args else { return Err(few()) };
                let storage = self.storage(*storage, builder)?;
                let class = storage.class.ok_or("its storage has no type")?;
                let view = self.view(storage, class, *offset, *shape, *strides)?;
                let known = Some((class.dtype(), view.shape.clone()));
                let affine = self.affine(*parameters, depth, builder).map_err(|bad| Bad { known, ..bad })?;
                Ok(Tensor::Quantised(view, affine))
            }
            "_rebuild_sparse_tensor" | "_rebuild_sparse_csr_tensor" => {
                let [layout, data, ..] = args else { return Err(few()) };
                self.sparse(*layout, *data, depth, builder)
            }
            "_rebuild_meta_tensor_no_storage" => {
                let [class, shape, ..] = args else { return Err(few()) };
                Ok(Tensor::Meta(self.class(*class)?, sizes(self.graph, *shape).ok_or("its shape is no tuple of sizes")?))
            }
            "_rebuild_device_tensor_from_numpy" | "_rebuild_device_tensor_from_cpu_tensor" | "_rebuild_xla_tensor" => {
                let [data, ..] = args else { return Err(few()) };
                self.wrapped(*data, depth, builder)
            }
            other => Err(format!("is rebuilt by {}, which is not known", quoted(other.as_bytes())).into()),
        }
    }

    fn storage(&mut self, id: Id, builder: &mut Builder) -> Result<Storage, Bad> {
        self.finder.find(self.graph, id, builder).map_err(Bad::from)
    }

    fn view(&self, storage: Storage, class: &'static Type, offset: Id, shape: Id, strides: Id) -> Result<View, Bad> {
        let shape = sizes(self.graph, shape).ok_or("its shape is no tuple of sizes")?;
        let known = || Some((class.dtype(), shape.clone()));
        let strides = sizes(self.graph, strides).ok_or_else(|| Bad { what: "its strides are no tuple of sizes".to_string(), known: known() })?;
        let offset = self.graph.int(offset).ok_or("its offset is no integer")?;
        let offset = u64::try_from(offset).map_err(|_| Bad { what: format!("its offset is {offset}"), known: known() })?;
        View::new(storage, class, offset, shape, strides, self.endian)
    }

    fn class(&self, id: Id) -> Result<&'static Type, Bad> {
        match self.graph.global(id) {
            Some(("torch", name)) => Type::by_name(name).ok_or_else(|| format!("is of the unknown type torch.{name}").into()),
            _ => Err("its type is none of torch's".into()),
        }
    }

    /// Takes the conjugate and negative bits from a dict of metadata.
    fn bits(&self, view: &mut View, metadata: Option<&Id>) {
        let Some(Node::Dict(pairs)) = metadata.map(|id| self.graph.node(*id)) else { return };
        for (key, value) in pairs {
            let set = self.graph.int(*value) == Some(1);
            match self.graph.short(*key) {
                Some(b"conj") => view.conjugate = set,
                Some(b"neg") => view.negative = set,
                _ => {}
            }
        }
    }

    fn affine(&mut self, parameters: Id, depth: u32, builder: &mut Builder) -> Result<Affine, Bad> {
        let items = self.graph.sequence(parameters).unwrap_or_default();
        let Some((scheme, rest)) = items.split_first() else { return Err("has no quantisation parameters".into()) };
        let scheme = self.graph.global(*scheme).map(|(_, name)| name).unwrap_or_default();
        match (scheme, rest) {
            ("per_tensor_affine" | "per_tensor_symmetric", [scale, zero_point, ..]) => {
                let scale = match self.graph.node(*scale) {
                    Node::Float(scale) => *scale,
                    Node::Int(scale) => *scale as f64,
                    _ => return Err("its scale is no number".into()),
                };
                Ok(Affine::Tensor { scale, zero_point: self.graph.int(*zero_point).ok_or("its zero point is no integer")? })
            }
            ("per_channel_affine" | "per_channel_symmetric" | "per_channel_affine_float_qparams", [scales, zero_points, axis, ..]) => {
                let mut part = |id: Id| match self.wrapped(id, depth, builder)? {
                    Tensor::View(view) => Ok(Box::new(view)),
                    _ => Err(Bad::from("its scales are no plain tensor")),
                };
                let (scales, zero_points) = (part(*scales)?, part(*zero_points)?);
                let axis = self.graph.int(*axis).and_then(|axis| u64::try_from(axis).ok()).ok_or("its axis is no integer")?;
                Ok(Affine::Channel { scales, zero_points, axis, floats: scheme == "per_channel_affine_float_qparams" })
            }
            (other, _) => Err(format!("is quantised by the scheme {}, which is not known", quoted(other.as_bytes())).into()),
        }
    }

    fn sparse(&mut self, layout: Id, data: Id, depth: u32, builder: &mut Builder) -> Result<Tensor, Bad> {
        let name = match (self.graph.global(layout), self.graph.call(layout)) {
            (Some((_, name)), _) => name.as_bytes(),
            (None, Some((_, "_get_layout", [name, ..]))) => self.graph.short(*name).unwrap_or_default(),
            _ => b"",
        };
        let layout = std::str::from_utf8(name).ok().and_then(Layout::by_name).ok_or_else(|| format!("has the unknown layout {}", quoted(name)))?;
        let items = self.graph.sequence(data).unwrap_or_default();
        let parts = if layout == Layout::Coo { 1 } else { 2 };
        let Some((indices, [values, shape, ..])) = items.split_at_checked(parts) else { return Err("has too few sparse parts".into()) };
        let mut part = |id: Id| match self.wrapped(id, depth, builder)? {
            Tensor::View(view) => Ok(view),
            _ => Err(Bad::from("is sparse and its parts are no plain tensors")),
        };
        let indices = indices.iter().map(|id| part(*id)).collect::<Result<Vec<_>, _>>()?;
        let values = part(*values)?;
        let shape = sizes(self.graph, *shape).ok_or("its shape is no tuple of sizes")?;
        Sparse::new(layout, indices, values, shape).map(Tensor::Sparse)
    }
}
