//! Quantised layouts: what is decoded equals what the layout's own library decodes, and what is not certain is served as it is stored.
//!
//! `fixtures/layouts/README.md` says which library judged which folder, and `scripts/make-layouts` how.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::panic,
    reason = "in a test, a panic is the report of a failure"
)]

#[path = "common/support.rs"]
mod support;

use std::collections::BTreeSet;
use std::path::Path;

use mount_tensors::fs::Errno;
use serde_json::Value;
use sha2::{Digest, Sha256};
use support::{Random, fixtures, json, open, read, read_at};

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The same values with one single NaN.
fn canonical(mut values: Vec<u8>) -> Vec<u8> {
    for value in values.chunks_exact_mut(4) {
        if f32::from_le_bytes(value.try_into().unwrap()).is_nan() {
            value.copy_from_slice(&0x7fc0_0000u32.to_le_bytes());
        }
    }
    values
}

fn expected() -> serde_json::Map<String, Value> {
    let bytes = std::fs::read("fixtures/layouts/values.json").unwrap();
    serde_json::from_slice::<Value>(&bytes).unwrap().as_object().unwrap().clone()
}

#[test]
fn values_are_those_of_the_layouts_own_libraries() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for (path, tensors) in expected() {
        let fs = open(Path::new("fixtures/layouts").join(&path)).unwrap_or_else(|e| panic!("{e}"));
        let issues = json(&fs, "issues.json");
        if issues.as_array().unwrap().iter().any(|_| path.starts_with("good/")) {
            wrong.push(format!("{path}: {issues}"));
        }
        let listed = json(&fs, "tensors.json");
        for (name, wanted) in tensors.as_object().unwrap() {
            checked += 1;
            let Some(tensor) = listed.as_array().unwrap().iter().find(|t| t["name"] == name.as_str()) else {
                wrong.push(format!("{path}: {name}: is not listed"));
                continue;
            };
            for key in ["dtype", "shape"] {
                if tensor[key] != wanted[key] {
                    wrong.push(format!("{path}: {name}: {key} {} is not {}", tensor[key], wanted[key]));
                }
            }
            if tensor["scheme"]["layout"] != wanted["layout"] {
                wrong.push(format!("{path}: {name}: the layout {} is not {}", tensor["scheme"]["layout"], wanted["layout"]));
            }
            let Some(file) = tensor["files"]["f32"].as_str() else {
                wrong.push(format!("{path}: {name}: has no decoded file"));
                continue;
            };
            let values = canonical(read(&fs, file).unwrap());
            if sha256(&values) != wanted["f32_sha256"].as_str().unwrap() {
                wrong.push(format!(
                    "{path}: {name}: the values differ: {:?}",
                    values.chunks_exact(4).take(4).map(|v| f32::from_le_bytes(v.try_into().unwrap())).collect::<Vec<_>>()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {checked}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(checked > 150, "only {checked} tensors were checked");
}

#[test]
fn any_part_equals_the_slice_of_the_whole() {
    let mut random = Random(7);
    for (path, tensors) in expected() {
        let fs = open(Path::new("fixtures/layouts").join(&path)).unwrap();
        let listed = json(&fs, "tensors.json");
        for name in tensors.as_object().unwrap().keys() {
            let tensor = listed.as_array().unwrap().iter().find(|t| t["name"] == name.as_str()).unwrap();
            for view in ["f32", "npy", "bf16"] {
                let file = tensor["files"][view].as_str().unwrap();
                let ino = fs.resolve(file.as_bytes()).unwrap();
                let whole = read(&fs, file).unwrap();
                for _ in 0..40 {
                    let offset = random.next() % (whole.len() as u64 + 4);
                    // As many short reads as long ones.
                    let most = 1 << (random.next() % 14);
                    let size = random.next() % most + 1;
                    let end = (offset + size).min(whole.len() as u64).max(offset);
                    let start = (offset as usize).min(whole.len());
                    let part = read_at(&fs, ino, offset, size as u32).unwrap();
                    assert_eq!(part, whole[start..(end as usize).max(start).min(whole.len())], "{path}: {file}: {size} bytes at {offset}");
                }
            }
        }
    }
}

#[test]
fn every_layout_says_what_it_is_made_of() {
    let mut layouts = BTreeSet::new();
    for path in fixtures("layouts", "good") {
        let fs = open(&path).unwrap_or_else(|e| panic!("{e}"));
        let listed = json(&fs, "tensors.json");
        let listed = listed.as_array().unwrap();
        for tensor in listed.iter().filter(|t| !t["scheme"].is_null()) {
            let scheme = tensor["scheme"].as_object().unwrap();
            layouts.insert(scheme["layout"].as_str().unwrap().to_string());
            for input in ["packed", "scales", "scale", "biases", "zeros", "g_idx", "absmax", "nested_absmax", "global_scale"] {
                let Some(name) = scheme.get(input) else { continue };
                assert!(listed.iter().any(|t| t["name"] == *name), "{}: {input} {name} is no tensor", path.display());
            }
            assert!(matches!(scheme["result_dtype"].as_str(), Some("f32" | "f16" | "bf16")), "{}: {scheme:?}", path.display());
            let raw = tensor["files"]["raw"].as_str().unwrap();
            assert_eq!(read(&fs, raw).unwrap().len() as u64, tensor["bytes"].as_u64().unwrap(), "{}: {raw}", path.display());
        }
    }
    let all: Vec<&str> = layouts.iter().map(String::as_str).collect();
    let wanted = [
        "awq",
        "bitsandbytes_fp4",
        "bitsandbytes_int8",
        "bitsandbytes_nf4",
        "fp8_scaled",
        "gpt_oss_mxfp4",
        "gptq",
        "int8_scaled",
        "mlx_affine",
        "mlx_mxfp4",
        "mlx_mxfp8",
        "mlx_nvfp4",
        "modelopt_nvfp4",
        "mxfp4_pack_quantized",
        "nvfp4_pack_quantized",
        "pack_quantized",
        "torchao_float8tensor",
        "torchao_int8tensor",
    ];
    assert_eq!(all, wanted);
}

#[test]
fn what_is_not_certain_is_an_issue_and_served_as_stored() {
    for path in fixtures("layouts", "degraded") {
        let fs = open(&path).unwrap_or_else(|e| panic!("{e}"));
        assert!(!json(&fs, "issues.json").as_array().unwrap().is_empty(), "{}: has no issue", path.display());
        for tensor in json(&fs, "tensors.json").as_array().unwrap() {
            assert!(tensor["scheme"].is_null(), "{}: {tensor}", path.display());
            let raw = tensor["files"]["raw"].as_str().unwrap();
            assert_eq!(read(&fs, raw).unwrap().len() as u64, tensor["bytes"].as_u64().unwrap(), "{}: {raw}", path.display());
        }
    }
}

/// A group that is not there is found when the values are read, and only then.
#[test]
fn a_g_idx_out_of_range_is_an_error_of_that_read() {
    let fs = open("fixtures/layouts/hostile/gptq_g_idx").unwrap();
    let listed = json(&fs, "tensors.json");
    let weight = listed.as_array().unwrap().iter().find(|t| t["name"] == "p.weight").unwrap();
    assert_eq!(read(&fs, weight["files"]["f32"].as_str().unwrap()), Err(Errno::Io));
    assert!(read(&fs, weight["files"]["raw"].as_str().unwrap()).is_ok());
    assert!(read(&fs, "raw/p.qweight.i32").is_ok());
}

/// Every decoded file of a container, whatever it is: read to its end or refused, and never more than a small file can mean.
fn read_all_of(folder: &Path) {
    let Ok(fs) = open(folder) else { return };
    for tensor in json(&fs, "tensors.json").as_array().unwrap() {
        if tensor["elements"].as_u64().is_none_or(|elements| elements > 1 << 20) {
            continue;
        }
        if let Some(file) = tensor["files"]["f32"].as_str() {
            let _ = read(&fs, file);
        }
    }
}

/// Each number of a JSON value, replaced by another.
fn with_other_numbers(value: &Value, visit: &mut dyn FnMut(&Value)) {
    let paths = {
        let mut paths = Vec::new();
        let mut pending = vec![(String::new(), value)];
        while let Some((path, value)) = pending.pop() {
            match value {
                Value::Object(object) => pending.extend(object.iter().map(|(key, v)| (format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), v))),
                Value::Array(array) => pending.extend(array.iter().enumerate().map(|(i, v)| (format!("{path}/{i}"), v))),
                Value::Number(_) => paths.push(path),
                _ => {}
            }
        }
        paths
    };
    for path in paths {
        for number in [
            serde_json::json!(0),
            serde_json::json!(-1),
            serde_json::json!(1),
            serde_json::json!(3),
            serde_json::json!(7),
            serde_json::json!(u64::MAX),
            serde_json::json!("x"),
        ] {
            let mut changed = value.clone();
            *changed.pointer_mut(&path).unwrap() = number;
            visit(&changed);
        }
    }
}

#[test]
fn other_shapes_types_and_parameters_never_panic() {
    const SAME_SIZE: [&[&str]; 3] = [&["U8", "I8", "F8_E4M3", "F8_E8M0", "F8_E5M2", "BOOL"], &["F16", "BF16", "I16"], &["I32", "U32", "F32"]];
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path();
    let mut tried = 0;
    for kind in ["good", "degraded", "hostile"] {
        for fixture in fixtures("layouts", kind) {
            let bytes = std::fs::read(fixture.join("model.safetensors")).unwrap();
            let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
            let config = std::fs::read(fixture.join("config.json")).ok();
            let config_path = folder.join("config.json");
            let mut write = |header: &Value| {
                let text = serde_json::to_vec(header).unwrap();
                let file = [&(text.len() as u64).to_le_bytes(), text.as_slice(), &bytes[8 + len..]].concat();
                std::fs::write(folder.join("model.safetensors"), file).unwrap();
                tried += 1;
                read_all_of(folder);
            };
            match &config {
                Some(config) => std::fs::write(&config_path, config).unwrap(),
                None => _ = std::fs::remove_file(&config_path),
            }
            let names: Vec<String> = header.as_object().unwrap().keys().filter(|name| *name != "__metadata__").cloned().collect();
            for name in names {
                let entry = &header[&name];
                let mut shape: Vec<u64> = entry["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect();
                let product: u64 = shape.iter().product();
                shape.reverse();
                let halves = if product.is_multiple_of(2) { vec![2, product / 2] } else { vec![product, 1] };
                for shape in [shape, vec![product], vec![1, product], vec![product, 1], halves, vec![1, 1, product]] {
                    let mut changed = header.clone();
                    changed[&name]["shape"] = serde_json::json!(shape);
                    write(&changed);
                }
                let group = SAME_SIZE.iter().find(|group| group.contains(&entry["dtype"].as_str().unwrap()));
                for dtype in group.into_iter().flat_map(|group| group.iter()) {
                    let mut changed = header.clone();
                    changed[&name]["dtype"] = serde_json::json!(dtype);
                    write(&changed);
                }
                // Missing altogether: its bytes are a hole.
                let mut changed = header.clone();
                changed.as_object_mut().unwrap().remove(&name);
                write(&changed);
            }
            if let Some(config) = config.as_deref().and_then(|config| serde_json::from_slice::<Value>(config).ok()) {
                std::fs::write(folder.join("model.safetensors"), &bytes).unwrap();
                with_other_numbers(&config, &mut |changed| {
                    std::fs::write(&config_path, serde_json::to_vec(changed).unwrap()).unwrap();
                    read_all_of(folder);
                });
            }
        }
    }
    assert!(tried > 3000, "only {tried} files were tried");
}
