"""What tests of many kernels say of defaults: each is a point of its variant's space, and fits."""


def assert_default_fits(variant, problem, on):
    """The default for a case on a GPU is among ``variant.configs``, asked without listing them."""
    config, at = dict(variant.default(problem, on)), (variant.name, str(problem))
    assert config.keys() == variant.space.keys(), at
    assert all(config[name] in values for name, values in variant.space.items()), (*at, config)
    assert not variant.fits(config, problem, on), (*at, config, variant.fits(config, problem, on))


def assert_defaults_fit(declaration, on):
    """So is that of each variant for every case that it takes: those of the GPU and the edge cases."""
    for work in declaration.passes.values():
        for problem in (*declaration.cases(on), *declaration.edge_cases):
            for variant in work.variants:
                if not variant.unsupported(problem, on):
                    assert_default_fits(variant, problem, on)
