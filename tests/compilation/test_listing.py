"""Reading PTX and AMD assembly, and digests that do not know where the checkout lies."""

import inside
import pytest
from atlas.compilation.listings import async_copies, matrix_instruction, strip_debug, widest_access_bits


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];", 128),
        ("st.global.b16 [%rd1], %rs1;", 16),
        ("ld.global.L1::evict_last.v2.b32 {%r1, %r2}, [%rd1];", 64),  # modifiers between space and vector
        ("ld.relaxed.gpu.global.b64 %rd2, [%rd1];", 64),  # and before the space
        ("ld.global.b32 %r1, [%rd1];\nst.global.v2.b64 [%rd2], {%rd3, %rd4};", 128),  # the widest of several
        ("cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, 0x10;", 128),  # bytes, not bits
        ("cp.async.ca.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x4, %r9;", 32),
        ("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {0, 0}];", 128),
        ("ld.param.b64 %rd1, [p]; ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r5];", None),  # not global
        ("global_load_dwordx4 v[0:3], v4, s[0:1]", 128),
        ("buffer_store_short v1, v2, s[0:3], 0 offen", 16),
        ("buffer_load_dword v1, v2, s[0:3], 0 offen", 32),
    ],
)
def test_the_widest_global_access_is_read(text, bits):
    assert widest_access_bits(text) == bits


@pytest.mark.parametrize(
    ("text", "has_dot", "instruction"),
    [
        ("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {…}; mma.sync.aligned…", True, "wgmma"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {…}", True, "mma"),
        ("v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], 0", True, "mma"),
        ("fma.rn.f32 %f1, %f2, %f3, %f4;", True, "fma"),
        ("fma.rn.f32 %f1, %f2, %f3, %f4;", False, "none"),  # an FMA that no dot asked for
    ],
)
def test_the_matrix_instruction_is_read(text, has_dot, instruction):
    assert matrix_instruction(text, has_dot) == instruction


@pytest.mark.parametrize(
    ("text", "copies"),
    [
        ("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {0, 0}];", "tma"),
        ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {0, 0}], [%r1];", "tma"),  # a store counts too
        ("cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, 0x10;", "cp.async"),
        ("cp.async.bulk.wait_group.read 0; ld.global.b32 %r1, [%rd1];", "none"),  # a wait copies nothing
        ("global_load_dwordx4 v[0:3], v4, s[0:1]", "none"),
    ],
)
def test_who_copies_into_shared_memory_is_read(text, copies):
    assert async_copies(text) == copies


def test_source_positions_and_debug_sections_are_left_out_and_code_is_not():
    text = "\n".join(
        [
            ".visible .entry k() {",
            "\t.loc\t1 26 0 // k.py:26",
            "\tret;",
            "}",
            '\t.file\t1 "/somewhere/k.py"',
            "\t.section\t.debug_info",
            "\t{",
            ".b8 47",
            "\t}",
            "\t.section\t.debug_macinfo\t{\t}",
            ".func after() { ret; }",
        ]
    )
    assert strip_debug(text) == ".visible .entry k() {\n\tret;\n}\n.func after() { ret; }\n"


@pytest.mark.parametrize("backend", [None, "hip"], ids=["cuda", "hip"])
def test_digests_do_not_depend_on_where_the_checkout_lies(compiling, tmp_path, backend):
    here = compiling(inside.digests_of_one_source, tmp_path / "here", "h200", backend)
    there = compiling(inside.digests_of_one_source, tmp_path / "a" / "longer" / "way" / "there", "h200", backend)
    assert here[0] == there[0]
    assert here[2:] == (False, False)  # the stripped text names no folder, and this was compiled, not looked up
    if backend is None:
        assert here[1], "the compiler's own text is expected to name the folder: else this test shows nothing"
