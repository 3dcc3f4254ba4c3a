//! Which globals a pickle may name without a word: the deny-list of what would run code, were the pickle loaded by Python.
//!
//! Nothing depends on the list for safety, since nothing is ever called: it only decides which names become issues. All names are in info.json.

use super::super::pickle::json::modern;

/// Modules of which any name would run code, read or write files, or reach the network.
const MODULES: &[&str] = &[
    "_aix_support",
    "_compat_pickle",
    "_osx_support",
    "_posixsubprocess",
    "_pyrepl",
    "_thread",
    "aiohttp",
    "asyncio",
    "bdb",
    "cProfile",
    "cffi",
    "cgitb",
    "code",
    "codeop",
    "commands",
    "ctypes",
    "distutils",
    "doctest",
    "dill",
    "ensurepip",
    "fileinput",
    "ftplib",
    "http",
    "httplib",
    "idlelib",
    "imp",
    "importlib",
    "ipaddress",
    "jsonpickle",
    "lib2to3",
    "linecache",
    "marshal",
    "mimetypes",
    "modulefinder",
    "multiprocessing",
    "nt",
    "ntpath",
    "os",
    "pdb",
    "pickle",
    "pickletools",
    "pip",
    "pkgutil",
    "platform",
    "popen2",
    "posix",
    "posixpath",
    "profile",
    "pty",
    "py_compile",
    "pydoc",
    "readline",
    "requests",
    "runpy",
    "setuptools",
    "shelve",
    "shutil",
    "site",
    "smtplib",
    "socket",
    "socketserver",
    "ssl",
    "subprocess",
    "sys",
    "sysconfig",
    "tarfile",
    "telnetlib",
    "tempfile",
    "test",
    "threading",
    "timeit",
    "torch.hub",
    "torch.utils.bottleneck",
    "torch.utils.collect_env",
    "torch.utils.cpp_extension",
    "trace",
    "unittest",
    "urllib",
    "urllib2",
    "venv",
    "webbrowser",
    "xmlrpc",
    "zipimport",
];

/// Single names of modules that are otherwise harmless.
const NAMES: &[(&str, &[&str])] = &[
    (
        "builtins",
        &[
            "__import__",
            "apply",
            "breakpoint",
            "compile",
            "delattr",
            "eval",
            "exec",
            "execfile",
            "file",
            "getattr",
            "globals",
            "help",
            "input",
            "locals",
            "map",
            "filter",
            "open",
            "raw_input",
            "reload",
            "setattr",
            "vars",
            "memoryview",
            "type",
            "__build_class__",
            "__loader__",
            "__dict__",
        ],
    ),
    ("functools", &["partial", "partialmethod", "reduce"]),
    ("_io", &["FileIO", "open", "open_code"]),
    ("io", &["FileIO", "open", "open_code"]),
    ("types", &["CodeType", "FunctionType", "LambdaType", "MethodType", "DynamicClassAttribute"]),
    ("uuid", &["_get_command_stdout", "_popen", "_find_mac"]),
    ("itertools", &["starmap", "accumulate"]),
    ("operator", &["attrgetter", "methodcaller", "itemgetter", "call"]),
    ("_operator", &["attrgetter", "methodcaller", "itemgetter", "call"]),
    ("numpy", &["load", "fromfile", "loadtxt", "genfromtxt"]),
    ("numpy.testing._private.utils", &["runstring"]),
    ("torch", &["load", "save"]),
    ("torch.serialization", &["load", "save"]),
    ("torch.jit", &["load"]),
    ("torch.fx.experimental.symbolic_shapes", &["ShapeEnv.evaluate_guards_expression"]),
];

/// Whether a module is one of the list or inside one.
fn is_in(module: &str, listed: &str) -> bool {
    module.strip_prefix(listed).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether Python would run code (or open a file, or a connection) if it called this global.
pub(super) fn is_dangerous(module: &str, name: &str) -> bool {
    let module = modern(module);
    let module = module.strip_prefix("six.moves.").unwrap_or(module);
    if MODULES.iter().any(|listed| is_in(module, listed)) {
        return true;
    }
    let first = name.split('.').next().unwrap_or_default();
    let numpy_tools = (module.starts_with("numpy.f2py") || module.starts_with("numpy.distutils"))
        || module.starts_with("torch._inductor")
        || module.starts_with("torch._dynamo");
    let through_dunder = name.split('.').any(|part| matches!(part, "__globals__" | "__builtins__" | "__subclasses__" | "__reduce__" | "__getattribute__"));
    numpy_tools || through_dunder || NAMES.iter().any(|(listed, names)| *listed == module && (names.contains(&name) || names.contains(&first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_code_is_told_from_what_makes_values() {
        for (module, name) in [
            ("os", "system"),
            ("posix", "system"),
            ("nt", "spawnl"),
            ("__builtin__", "eval"),
            ("builtins", "getattr"),
            ("subprocess", "Popen"),
            ("runpy", "_run_code"),
            ("torch.utils.collect_env", "run"),
            ("importlib.machinery", "SourceFileLoader"),
            ("numpy.testing._private.utils", "runstring"),
            ("builtins", "getattr.__globals__"),
        ] {
            assert!(is_dangerous(module, name), "{module}.{name}");
        }
        for (module, name) in [
            ("collections", "OrderedDict"),
            ("torch._utils", "_rebuild_tensor_v2"),
            ("__builtin__", "set"),
            ("argparse", "Namespace"),
            ("ultralytics.nn.tasks", "DetectionModel"),
            ("torch", "FloatStorage"),
            ("osmosis", "Model"),
            ("numpy", "dtype"),
        ] {
            assert!(!is_dangerous(module, name), "{module}.{name}");
        }
    }
}
