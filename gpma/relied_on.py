"""What kernels that are loaded in our own ways rely on inside Numba, and whether this Numba has it.

Numba promises none of this to anybody. Where any of it is missing, or is called otherwise, kernels are kept and
loaded as Numba itself does it, which takes longer.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

_RELIED_ON: dict[str, dict[str, tuple[str, str]]] = {
    # By module: a function's parameters, and what it must use for our part to fit in.
    "numba.core.caching": {
        "Cache.load_overload": ("self sig target_context", "refresh _load_overload"),
        "Cache._load_overload": ("self sig target_context", "_index_key _cache_file load _impl rebuild"),
        "Cache._save_overload": ("self sig data", "_index_key codegen _cache_file save _impl reduce"),
        "Cache._index_key": ("self sig codegen", "_py_func magic_tuple"),
        "CacheImpl.__init__": ("self py_func", "_locator_classes from_function get_filename_base"),
        "IndexDataCacheFile._data_name": ("self number", "_data_name_pattern format"),
        "IndexDataCacheFile._data_path": ("self name", ""),
        "IndexDataCacheFile._load_index": ("self", ""),
        "IndexDataCacheFile._save_index": ("self overloads", ""),
        "UserProvidedCacheLocator.__init__": ("self py_func py_file", "_py_file"),
        "UserProvidedCacheLocator.get_cache_path": ("self", ""),
        "UserProvidedCacheLocator.get_source_stamp": ("self", ""),
        "CompileResultCacheImpl.reduce": ("self cres", "_reduce"),
        "CompileResultCacheImpl.rebuild": ("self target_context payload", "CompileResult _rebuild"),
    },
    "numba.core.compiler": {
        "CompileResult._reduce": (
            "self",
            "library serialize_using_object_code fndesc _find_referenced_environments",
        ),
        "CompileResult._find_referenced_environments": ("self", "library _final_module lookup_environment"),
        "CompileResult._rebuild": (
            "cls target_context libdata fndesc env signature objectmode lifted typeann reload_init "
            "referenced_envs",
            "codegen unserialize_library get_executable",
        ),
    },
    "numba.core.environment": {
        "Environment.__reduce__": ("self", "_rebuild_env globals get consts env_name"),
        "_rebuild_env": ("modname consts env_name", "importlib import_module Environment env_name _memo"),
    },
    "numba.core.cpu": {
        "CPUContext.get_executable": (
            "self library fndesc env",
            "get_pointer_to_function llvm_cpython_wrapper_name",
        ),
        "CPUContext.load_additional_registries": ("self", "rtsys initialize"),
    },
    "numba.core.codegen": {
        "JITCPUCodegen.unserialize_library": ("self serialized", "_library_class _unserialize"),
        "JITCPUCodegen.create_library": ("self name", "_library_class"),
        "JITCPUCodegen.set_env": ("self env_name env", "_engine get_global_value_address"),
        "JITCodeLibrary.__init__": ("self codegen name", "_codegen _final_module _linking_libraries"),
        "JITCodeLibrary.add_linking_library": ("self library", "_ensure_finalized _linking_libraries"),
        "JITCodeLibrary.get_function": ("self name", "_final_module get_function"),
        "JITCodeLibrary.serialize_using_object_code": ("self", "_get_compiled_object _get_module_for_linking"),
        "JITCodeLibrary._get_compiled_object": ("self", "_compiled_object"),
        "JITCodeLibrary._finalize_final_module": ("self", "_codegen _add_module _final_module _finalize_specific"),
        "JITCodeLibrary._unserialize": (
            "cls codegen state",
            "create_library enable_object_caching _set_compiled_object _shared_module _finalize_final_module "
            "_codegen _engine _load_defined_symbols",
        ),
        "JITCodeLibrary._get_module_for_linking": ("self", "_shared_module"),
        "JITCodeLibrary._optimize_functions": (
            "self ll_module",
            "data_layout _codegen _data_layout functions _function_pass_manager run",
        ),
        "JITCodeLibrary.finalize": (
            "self",
            "_linking_libraries _final_module link_in _get_module_for_linking _reload_init",
        ),
        "JITCodeLibrary.get_pointer_to_function": ("self name", "is_symbol_defined get_function_address"),
        "JitEngine.__init__": ("self ee", "_ee _defined_symbols"),
        "JitEngine.get_function_address": ("self name", ""),
        "JitEngine.is_symbol_defined": ("self name", "_defined_symbols"),
        "JitEngine._load_defined_symbols": ("self mod", "_defined_symbols"),
    },
    "numba.core.funcdesc": {
        "FunctionDescriptor.llvm_func_name": ("self", ""),
        "FunctionDescriptor.llvm_cpython_wrapper_name": ("self", ""),
        "FunctionDescriptor.llvm_cfunc_wrapper_name": ("self", ""),
    },
    "numba.core.runtime.nrt": {"rtsys.initialize": ("self ctx", "")},
}


@functools.cache
def lacking() -> str | None:
    """What this Numba lacks, or has otherwise; None when all is there."""
    for module, functions in _RELIED_ON.items():
        for name, (parameters, uses) in functions.items():
            try:
                code = _code(module, name)
            except (AttributeError, ImportError):
                return f"{module}.{name} is not there"
            if code.co_varnames[: code.co_argcount] != tuple(parameters.split()):
                return f"{module}.{name} is called otherwise"
            if missed := sorted({*uses.split()} - {*code.co_names}):
                return f"{module}.{name} does not use {', '.join(missed)}"
    return None


def _code(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return inspect.unwrap(getattr(found, "fget", found)).__code__
